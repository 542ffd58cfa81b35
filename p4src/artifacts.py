"""The committed, compiled data plane: BMv2 JSON and P4Info."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"
CONFIG_FILE = "checkmate.json"
P4INFO_FILE = "checkmate.p4info.txtpb"
DIGEST_FILE = "sources.sha256"
COMPILER_FILE = "p4c.version"
_COMMENT = re.compile(rb"[ \t]*//[^\n]*")


def device_config() -> bytes:
    """Return the BMv2 JSON, the device config that is pushed to software switches over P4Runtime."""
    return (BUILD / CONFIG_FILE).read_bytes()


def p4info_text() -> str:
    """Return the P4Info as protobuf text."""
    return (BUILD / P4INFO_FILE).read_text()


def digest_of(root: Path, *patterns: str) -> str:
    """Return the SHA-256 over names and contents of the P4 files below `root` that match one of `patterns`.

    Comments are ignored, since they do not affect the compiler's output, but lines count: it records their numbers.
    """
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        code = _COMMENT.sub(b"", path.read_bytes())
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + code + b"\0")
    return digest.hexdigest()
