"""Code for whole headers: extracting, emitting, resetting, copying."""

from __future__ import annotations

from softswitch.codegen.expr import Code
from softswitch.codegen.layout import Group, Layout
from softswitch.codegen.source import SourceWriter
from softswitch.codegen.symbols import Symbols
from softswitch.program.expressions import FieldRef
from softswitch.program.ir import Field


class HeaderWriter:
    """Writes statements that concern all fields of a header."""

    def __init__(self, symbols: Symbols) -> None:
        """Write with these variables."""
        self._symbols = symbols

    def _ref(self, header: str, declared: Field) -> FieldRef:
        return FieldRef(header, declared.name)

    def fixed_octets(self, header: str) -> int:
        """Return a header's size in bytes without its varbit field."""
        return self._symbols.program.headers[header].type.fixed_bits // 8

    def octets(self, header: str) -> str:
        """Return an expression for a header's current size in bytes."""
        varbit = self._symbols.program.headers[header].type.varbit
        fixed = self.fixed_octets(header)
        return str(fixed) if varbit is None else f"{fixed} + len({self._varbit(header)})"

    def _varbit(self, header: str) -> str:
        varbit = self._symbols.program.headers[header].type.varbit
        assert varbit is not None
        return self._symbols.field(self._ref(header, varbit))

    # -- extraction ------------------------------------------------------------------------------------------

    def extract(self, out: SourceWriter, header: str, varbit_octets: str | None) -> None:
        """Read the header at `offset`, mark it valid and advance. The caller has checked that the bytes are present.

        `varbit_octets` is the expression for the bytes of the varbit field, if the header has one.
        """
        layout = self._symbols.layouts[header]
        self._unpack(out, header, layout.before, "before", "offset")
        size = self.fixed_octets(header)
        if varbit_octets is not None:
            first = Layout.octets(layout.before)
            out.line(f"limit = offset + {first} + {varbit_octets}")
            out.line(f"{self._varbit(header)} = frame[offset + {first} : limit]")
            self._unpack(out, header, layout.after, "after", "limit")
        out.line(f"{self._symbols.valid(header)} = 1")
        if varbit_octets is not None:
            out.line(f"offset += {size} + {varbit_octets}")
        elif size:
            out.line(f"offset += {size}")

    def _struct(self, header: str, groups: list[Group], part: str) -> str:
        pattern = ">" + "".join(group.word_format for group in groups)
        name = f"{header}.{part}"
        return self._symbols.bind("struct", name, f"{header}_{part}_struct", f'Struct("{pattern}")')

    def _unpack(self, out: SourceWriter, header: str, groups: list[Group], part: str, at: str) -> None:
        words = [word.name for group in groups for word in group.words]
        if not words:
            return
        struct = self._struct(header, groups, part)
        unpack = self._symbols.bind(
            "unpack",
            struct,
            f"unpack_{header}" + ("" if part == "before" else "_end"),
            f"{struct}.unpack_from",
        )
        left = ", ".join(words) + ("," if len(words) == 1 else "")
        out.line(f"{left} = {unpack}(frame, {at})")
        for group in groups:
            if group.is_field:
                continue
            for declared, shift in group.fields:
                variable = self._symbols.field(self._ref(header, declared))
                out.line(f"{variable} = {_read(group, declared, shift)}")

    # -- emission --------------------------------------------------------------------------------------------

    def emitted(self, header: str) -> str:
        """Return an expression for the header's bytes."""
        layout = self._symbols.layouts[header]
        parts = [self._packed(header, layout.before, "before")]
        if self._symbols.program.headers[header].type.varbit is not None:
            parts += [self._varbit(header), self._packed(header, layout.after, "after")]
        return " + ".join(part for part in parts if part) or 'b""'

    def _packed(self, header: str, groups: list[Group], part: str) -> str:
        values = [value for group in groups for value in self._words(header, group)]
        if not values:
            return ""
        struct = self._struct(header, groups, part)
        pack = self._symbols.bind(
            "pack", struct, f"pack_{header}" + ("" if part == "before" else "_end"), f"{struct}.pack"
        )
        return f"{pack}({', '.join(values)})"

    def _words(self, header: str, group: Group) -> list[str]:
        if group.is_field or not group.rebuilt:
            return [word.name for word in group.words]
        parts: list[str] = []
        for declared, shift in group.fields:
            text = self._symbols.field(self._ref(header, declared))
            if declared.signed:
                text = f"({text} & {(1 << declared.width) - 1:#x})"
            parts.append(f"{text} << {shift}" if shift else text)
        if len(group.words) == 1:
            return [" | ".join(parts)]
        whole = parts[0] if len(parts) == 1 and parts[0].isidentifier() else f"({' | '.join(parts)})"
        values: list[str] = []
        for number, word in enumerate(group.words):
            text = f"{whole} >> {word.shift}" if word.shift else whole
            values.append(text if number == 0 else f"{text} & {(1 << 8 * word.octets) - 1:#x}")
        return values

    # -- other -----------------------------------------------------------------------------------------------

    def variables(self, header: str) -> list[str]:
        """Return the state variables that hold a header's contents (not its validity)."""
        names: list[str] = []
        for declared in self._symbols.program.headers[header].type.fields:
            ref = self._ref(header, declared)
            if self._symbols.is_live(ref) or declared.varbit:
                names.append(self._symbols.field(ref))
        if header in self._symbols.layouts:
            for group in self._symbols.layouts[header].groups:
                if not group.is_field and not group.rebuilt:
                    names += [word.name for word in group.words]
        return names

    def add(self, out: SourceWriter, header: str, *, track_length: bool) -> None:
        """Make a header valid; if it was not, its fields are set to 0."""
        valid = self._symbols.valid(header)
        with out.block(f"if not {valid}:"):
            self.zero(out, self.variables(header))
            out.line(f"{valid} = 1")
            if track_length:
                out.line(f"packet_bytes += {self.octets(header)}")

    def remove(self, out: SourceWriter, header: str, *, track_length: bool) -> None:
        """Make a header invalid."""
        valid = self._symbols.valid(header)
        if not track_length:
            out.line(f"{valid} = 0")
            return
        with out.block(f"if {valid}:"):
            out.line(f"{valid} = 0")
            out.line(f"packet_bytes -= {self.octets(header)}")

    def zero(self, out: SourceWriter, variables: list[str]) -> None:
        """Set variables to their initial values, a few per line."""
        numbers = [name for name in variables if self._symbols.initial(name) == "0"]
        for start in range(0, len(numbers), 6):
            out.line(" = ".join([*numbers[start : start + 6], "0"]))
        for name in variables:
            if self._symbols.initial(name) != "0":
                out.line(f"{name} = {self._symbols.initial(name)}")

    def assign(self, out: SourceWriter, target: str, source: str) -> None:
        """Copy a header; an invalid source only makes the target invalid."""
        if target == source:
            return
        valid = None if self._symbols.is_metadata(target) else self._symbols.valid(target)

        def copy() -> None:
            if valid is not None:
                out.line(f"{valid} = 1")
            self.copy_fields(out, target, source)

        if self._symbols.is_metadata(source):
            copy()
            return
        with out.block(f"if {self._symbols.valid(source)}:"):
            copy()
        with out.block("else:"):
            if valid is not None:
                out.line(f"{valid} = 0")

    def copy_fields(self, out: SourceWriter, target: str, source: str) -> None:
        """Copy all fields of a header of the same type."""
        for declared in self._symbols.program.headers[target].type.fields:
            left, right = (self._symbols.field(self._ref(name, declared)) for name in (target, source))
            out.line(f"{left} = {right}")

    def bits(self, header: str) -> list[tuple[Code, int | None]]:
        """Return a header's fields as unsigned codes with widths; a varbit field is bytes, its width None."""
        result: list[tuple[Code, int | None]] = []
        for declared in self._symbols.program.headers[header].type.fields:
            text = self._symbols.field(self._ref(header, declared))
            if declared.varbit:
                result.append((Code(text, None), None))
                continue
            if declared.signed:
                text = f"({text} & {(1 << declared.width) - 1:#x})"
            result.append((Code(text, declared.width), declared.width))
        return result


def _read(group: Group, declared: Field, shift: int) -> str:
    """Return the expression that extracts a field from its group's words."""
    parts: list[str] = []
    top = 0
    for word in group.words:
        low, high = word.shift, word.shift + 8 * word.octets
        if shift >= high or shift + declared.width <= low:
            continue
        top = max(top, high)
        move = low - shift
        parts.append(word.name if move == 0 else f"{word.name} {'<<' if move > 0 else '>>'} {abs(move)}")
    joined = " | ".join(parts)
    if shift + declared.width < top:
        joined = f"({joined}) & {(1 << declared.width) - 1:#x}"
    if declared.signed:  # two's complement: flip the sign bit, then subtract its weight
        half = f"{1 << (declared.width - 1):#x}"
        return f"(({joined}) ^ {half}) - {half}"
    return joined
