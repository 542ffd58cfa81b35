"""Generate `names.py` from the P4Info, so that a renamed table or field is a type error in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable

from finsy.proto import p4i
from google.protobuf import text_format

from p4src.artifacts import ROOT

NAMES_FILE = ROOT / "names.py"
_HEADER = '''"""Names of the compiled data plane. Generated from the P4Info by `make p4`; do not edit."""

from __future__ import annotations

from enum import StrEnum
'''


def render_names(p4info_text: str) -> str:
    """Return the text of `names.py` for a P4Info in protobuf text form."""
    info = text_format.Parse(p4info_text, p4i.P4Info())
    sections: list[tuple[str, str, Iterable[str]]] = [
        ("Table", "Tables.", (table.preamble.name for table in info.tables)),
        ("MatchField", "Keys of tables.", (field.name for table in info.tables for field in table.match_fields)),
        ("Action", "Actions.", (action.preamble.name for action in info.actions)),
        ("Param", "Parameters of actions.", (param.name for action in info.actions for param in action.params)),
        ("Counter", "Indirect counters.", (counter.preamble.name for counter in info.counters)),
        ("Digest", "Digests.", (digest.preamble.name for digest in info.digests)),
    ]
    text = _HEADER
    for name, doc, values in sections:
        text += f'\n\nclass {name}(StrEnum):\n    """{doc}"""\n\n'
        for value in dict.fromkeys(values):
            text += f'    {re.sub(r"[^A-Za-z0-9]+", "_", value).strip("_").upper()} = "{value}"\n'
    return text
