"""Code for checksums and hashes over lists of inputs."""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.codegen.expr import Code, ExprWriter, fit
from softswitch.codegen.headers import HeaderWriter
from softswitch.codegen.source import SourceWriter
from softswitch.codegen.symbols import Symbols
from softswitch.program.expressions import Const, FieldRef
from softswitch.program.ir import CalcInput, Calculation, Checksum

_CSUM16 = ("csum16", "cksum16")


@dataclass(frozen=True)
class _Run:
    """Consecutive inputs from one header, present only while `valid` holds ("1": always).

    `parts` are unsigned codes with their widths in bits; width None marks a varbit field, whose code is
    bytes.
    """

    valid: str
    parts: list[tuple[Code, int | None]]

    @property
    def fixed_bits(self) -> int | None:
        """Width of the run, or None if it is known at run time only."""
        total = 0
        for _, width in self.parts:
            if width is None:
                return None
            total += width
        return total


class CalculationWriter:
    """Writes calculations. Inputs from an invalid header are omitted, as in BMv2."""

    def __init__(self, symbols: Symbols, exprs: ExprWriter) -> None:
        """Write with the parameters that `exprs` knows."""
        self._symbols = symbols
        self._exprs = exprs
        self._headers = HeaderWriter(symbols)

    # -- inputs ----------------------------------------------------------------------------------------------

    def _input(self, item: CalcInput) -> _Run:
        if item.header is not None:
            return _Run(self._symbols.valid(item.header), self._headers.bits(item.header))
        assert item.expr is not None
        if isinstance(item.expr, Const):
            width = item.expr.width or 0
            return _Run("1", [(Code(fit(self._exprs.code(item.expr), width), width), width)])
        assert isinstance(item.expr, FieldRef)
        declared = self._symbols.program.field(item.expr)
        valid = self._symbols.valid(item.expr.header)
        if declared.varbit:
            return _Run(valid, [(Code(self._symbols.field(item.expr), None), None)])
        code = Code(self._exprs.unsigned(item.expr, declared.width), declared.width)
        return _Run(valid, [(code, declared.width)])

    def _runs(self, calculation: Calculation) -> tuple[list[_Run], bool]:
        runs: list[_Run] = []
        with_payload = False
        for item in calculation.inputs:
            if item.expr is None and item.header is None:
                with_payload = True
                continue
            run = self._input(item)
            if runs and runs[-1].valid == run.valid:
                runs[-1].parts.extend(run.parts)
            else:
                runs.append(_Run(run.valid, list(run.parts)))
        return runs, with_payload

    # -- algorithms ------------------------------------------------------------------------------------------

    def value(self, out: SourceWriter, calculation: Calculation) -> Code:
        """Write the preparing statements, and return the calculation's result."""
        runs, with_payload = self._runs(calculation)
        if calculation.algorithm in _CSUM16:
            if _is_aligned(runs, with_payload):
                return self._aligned_csum16(out, runs, with_payload)
            self._bit_string(out, runs)
            data = self._bytes(out, with_payload)
            return Code(f"{self._helper('csum16')}({data})", 16)
        self._bit_string(out, runs)
        data = self._bytes(out, with_payload)
        widths = {"crc32": 32, "crc32_custom": 32, "identity": 64}
        function = calculation.algorithm.removesuffix("_custom").lower()
        return Code(f"{self._helper(function)}({data})", widths.get(calculation.algorithm, 16))

    def _helper(self, name: str) -> str:
        return self._symbols.bind("helper", name, name, f"hashes.{name}")

    def _aligned_csum16(self, out: SourceWriter, runs: list[_Run], with_payload: bool) -> Code:
        """Write the ones' complement sum without making bytes: 2**16 is 1 modulo 65535, so shifts of whole
        words do not matter and every part is added at its position within a word (RFC 1071, section 2)."""
        terms: list[str] = []
        position = 0
        for run in runs:
            inside: list[str] = []
            for code, width in run.parts:
                assert width is not None
                position += width
                shift = -position % 16
                inside.append(f"({code.text} << {shift})" if shift else code.text)
            text = " + ".join(inside)
            if run.valid != "1":
                text = f"({text} if {run.valid} else 0)"
            terms.append(text)
        if with_payload:
            octets = (position + 7) // 8
            sum16 = f"{self._helper('sum16')}({self._payload()})"
            terms.append(f"({sum16} << 8)" if octets % 2 else sum16)
        out.line(f"total = {' + '.join(terms) or '0'}")
        return Code("(65535 - (total % 65535 or total and 65535))", 16)

    def _payload(self) -> str:
        truncates = "truncate" in self._symbols.usage.primitives
        return "payload[:truncate_to]" if truncates else "payload"

    def _bit_string(self, out: SourceWriter, runs: list[_Run]) -> None:
        """Write code that concatenates the inputs into `acc`, `bits` bits long."""
        out.line("acc = bits = 0")
        for run in runs:
            if run.valid == "1":
                self._append_run(out, run)
            else:
                with out.block(f"if {run.valid}:"):
                    self._append_run(out, run)

    def _append_run(self, out: SourceWriter, run: _Run) -> None:
        for code, width in run.parts:
            if width is None:
                out.line(f'acc = acc << 8 * len({code.text}) | from_bytes({code.text}, "big")')
                out.line(f"bits += 8 * len({code.text})")
            else:
                out.line(f"acc = acc << {width} | {code.text}")
                out.line(f"bits += {width}")

    def _bytes(self, out: SourceWriter, with_payload: bool) -> str:
        """Write code that turns `acc` into bytes, the last one padded with zeros."""
        out.line("octets = bits + 7 >> 3")
        data = '(acc << 8 * octets - bits).to_bytes(octets, "big")'
        return f"{data} + {self._payload()}" if with_payload else data

    # -- checksums -------------------------------------------------------------------------------------------

    def verify(self, out: SourceWriter, checksum: Checksum, result: str) -> None:
        """Write code that sets `result` to 1 if the checksum is present and wrong."""
        out.comment(f"verify {checksum.target.header}.{checksum.target.field}", checksum.source)
        conditions = [self._symbols.valid(checksum.target.header)]
        if checksum.condition is not None:
            conditions.append(self._exprs.condition(checksum.condition))
        with out.block(f"if {' and '.join(text for text in conditions if text not in ('1', 'True')) or 'True'}:"):
            value = self.value(out, checksum.calculation)
            with out.block(f"if {value.text} != {self._exprs.code(checksum.target).text}:"):
                out.line(f"{result} = 1")

    def update(self, out: SourceWriter, checksum: Checksum) -> None:
        """Write code that stores the checksum in its field."""
        out.comment(f"update {checksum.target.header}.{checksum.target.field}", checksum.source)
        condition = "True" if checksum.condition is None else self._exprs.condition(checksum.condition)
        if condition == "True":
            self._store(out, checksum)
        else:
            with out.block(f"if {condition}:"):
                self._store(out, checksum)

    def _store(self, out: SourceWriter, checksum: Checksum) -> None:
        value = self.value(out, checksum.calculation)
        declared = self._symbols.program.field(checksum.target)
        out.line(f"{self._symbols.field(checksum.target)} = {self._exprs.stored(value, declared)}")


def _is_aligned(runs: list[_Run], with_payload: bool) -> bool:
    """Return whether every input's position within a 16-bit word is independent of which headers are valid."""
    moving = [
        run
        for position, run in enumerate(runs, 1)
        if run.fixed_bits is None or (run.valid != "1" and (with_payload or position < len(runs)))
    ]
    return all(run.fixed_bits is not None and run.fixed_bits % 16 == 0 for run in moving)
