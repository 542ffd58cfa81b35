"""The target features (clone, resubmit, recirculate, truncate) that a program uses."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.codegen.source import SourceWriter
from softswitch.codegen.symbols import Symbols

NO_LIMIT = 1 << 40
"""Initial truncation length in bytes: longer than any frame."""

NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6
"""Values of standard_metadata.instance_type in BMv2's simple_switch."""


class Features:
    """What a program uses.

    Attributes:
        clones_ingress, clones_egress, resubmits, recirculates, digests: the primitive occurs.
        truncates: packets may be cut (by the primitive, or by a clone session).
        kept: variables that some field list preserves.
    """

    def __init__(self, symbols: Symbols) -> None:
        """Find the features that the program uses."""
        used = symbols.usage.primitives
        self._symbols = symbols
        self.clones_ingress = "clone_ingress_pkt_to_egress" in used
        self.clones_egress = "clone_egress_pkt_to_egress" in used
        self.resubmits = "resubmit" in used
        self.recirculates = "recirculate" in used
        self.digests = "generate_digest" in used
        self.truncates = "truncate" in used or self.clones
        lists = symbols.program.field_lists.values()
        self.kept = list(dict.fromkeys(symbols.field(ref) for item in lists for ref in item.fields))

    @property
    def clones(self) -> bool:
        """Whether clones are made anywhere."""
        return self.clones_ingress or self.clones_egress

    @property
    def reenters_ingress(self) -> bool:
        """Whether a packet can pass ingress more than once."""
        return self.resubmits or self.recirculates

    @property
    def bounded(self) -> bool:
        """Whether a packet can make more than one pass, so that passes have to be counted."""
        return self.reenters_ingress or self.clones

    def by_list(self, out: SourceWriter, variable: str, write: Callable[[set[str]], None]) -> None:
        """Call `write` with the variables that a list keeps, for each list whose id `variable` may hold."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for item in self._symbols.program.field_lists.values():
            fields = tuple(self._symbols.field(ref) for ref in item.fields)
            groups.setdefault(fields, []).append(item.id)
        if len(groups) <= 1:
            write(set(next(iter(groups), ())))
            return
        for number, (fields, ids) in enumerate(groups.items()):
            test = f"== {ids[0]}" if len(ids) == 1 else f"in {tuple(ids)}"
            with out.block(f"{'elif' if number else 'if'} {variable} {test}:"):
                write(set(fields))

    def one_more_pass(self, out: SourceWriter, write: Callable[[], None]) -> None:
        """Call `write` for another pass of the packet, under the condition that it has one left."""
        cut_off = self._symbols.bind("helper", "cut_off", "cut_off", "rt.cut_off")
        with out.block("if passes[0]:"):
            out.line("passes[0] -= 1")
            write()
        with out.block("else:"):
            out.line(f"{cut_off}[0] += 1")
