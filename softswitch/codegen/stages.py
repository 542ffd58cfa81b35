"""Code for the stages of v1model around the controls: before ingress, between them, after egress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from softswitch.codegen.checksums import CalculationWriter
from softswitch.codegen.control import ControlWriter
from softswitch.codegen.expr import ExprWriter
from softswitch.codegen.features import (
    EGRESS_CLONE,
    INGRESS_CLONE,
    NO_LIMIT,
    NORMAL,
    RECIRCULATED,
    REPLICATED,
    RESUBMITTED,
    Features,
)
from softswitch.codegen.headers import HeaderWriter
from softswitch.codegen.parser import ParserWriter
from softswitch.codegen.primitives import SESSION_MASK
from softswitch.codegen.source import SourceWriter, identifiers, literal
from softswitch.codegen.symbols import TARGET_VARIABLES, Symbols

BODY = 2
"""Indentation of the function bodies: the functions are inside `build`."""

_TIME = "now & 0xffffffffffff"
"""The time as a timestamp of v1model, 48 bits wide."""


class StageWriter:
    """Writes the functions `egress`, `clone_to_egress` and `ingress`."""

    def __init__(self, symbols: Symbols) -> None:
        """Write all parts, and find the variables that pass from ingress to egress."""
        self.symbols = symbols
        self.features = Features(symbols)
        self._exprs = ExprWriter(symbols)
        self._headers = HeaderWriter(symbols)
        self._calculations = CalculationWriter(symbols, self._exprs)
        self._parse = SourceWriter(BODY)
        ParserWriter(symbols).write(self._parse)
        self._parse.line("payload = frame[offset:]")
        self._ingress = self._ingress_body()
        self._egress = SourceWriter(BODY)
        ControlWriter(symbols).write(self._egress, symbols.program.egress)
        self._deparse = self._deparse_body()
        self._egress_start = self._egress_metadata()
        self.egress_params, self._egress_only = self._divide_state()

    def write(self, out: SourceWriter) -> None:
        """Write all functions, callees first."""
        self._write_egress(out)
        if self.features.clones_ingress:
            self._write_clone(out)
        self._write_ingress(out)

    # -- scope of variables ----------------------------------------------------------------------------------

    def _divide_state(self) -> tuple[list[str], list[str]]:
        """Return egress's parameters, and the state that only egress uses (initially 0)."""
        used = identifiers([*self._egress.lines, *self._deparse.lines, *self._egress_start.values()])
        used.update(("payload", "packets"))
        if self.features.recirculates:
            used.update(("again", "recirculate_id"))
        if self.features.recirculates or self.features.clones_egress:
            used.update(self.features.kept)
        before = identifiers([*self._parse.lines, *self._ingress.lines])
        before.update(TARGET_VARIABLES, filter(None, map(self.symbols.target, _GIVEN)))
        if self.features.clones:
            before.update(self.features.kept)
        if self.features.clones_egress:  # a clone of egress keeps the headers as they are
            before.update(name for name in self.symbols.state if name not in self.symbols.metadata_state)
        candidates = [*TARGET_VARIABLES, *self.symbols.state]
        wanted = [name for name in candidates if name in used and name not in self._egress_start]
        return [name for name in wanted if name in before], [name for name in wanted if name not in before]

    def _call_egress(self, out: SourceWriter, port: str, overrides: Mapping[str, str]) -> None:
        """Write a call of egress with the current values, except for `overrides`."""
        out.listed("egress(", [port, *(overrides.get(name, name) for name in self.egress_params)], ")")

    def _target_values(self, values: Mapping[str, str]) -> dict[str, str]:
        """Return the values of target fields by variable, for the fields that the program uses."""
        found = ((self.symbols.target(name), text) for name, text in values.items())
        return {variable: text for variable, text in found if variable is not None}

    # -- egress ----------------------------------------------------------------------------------------------

    def _egress_metadata(self) -> dict[str, str]:
        """Return the metadata variables that egress sets first and reads, with their values."""
        width = self.symbols.target_width("standard_metadata.egress_spec")
        not_dropped = (self.symbols.constants.drop_port + 1) & ((1 << width) - 1)
        values = self._target_values(
            {
                "standard_metadata.egress_port": "port",
                "standard_metadata.egress_spec": str(not_dropped),
                "standard_metadata.packet_length": "packet_bytes",
                "intrinsic_metadata.egress_global_timestamp": _TIME,
                "queueing_metadata.enq_timestamp": "now & 0xffffffff",
                "queueing_metadata.enq_qdepth": "0",
                "queueing_metadata.deq_timedelta": "0",
                "queueing_metadata.deq_qdepth": "0",
            }
        )
        read = identifiers([*self._egress.lines, *self._deparse.lines])
        if self.features.recirculates or self.features.clones_egress:
            read.update(self.features.kept)
        return {variable: text for variable, text in values.items() if variable in read}

    def _write_egress(self, out: SourceWriter) -> None:
        with out.function("egress", ["port", *self.egress_params]):
            for variable, text in self._egress_start.items():
                out.line(f"{variable} = {text}")
            self._headers.zero(out, self._egress_only)
            if self.features.clones_egress:
                out.line("clone_session = clone_list = 0")
            out.insert(self._egress)
            if self.features.clones_egress:
                self._clone_egress(out)
            egress_spec = self.symbols.target("standard_metadata.egress_spec")
            if egress_spec in self._egress_start:
                with out.block(f"if {egress_spec} == {self.symbols.constants.drop_port}:"):
                    if self.features.clones_egress:
                        out.line("packets.extend(copies)")
                    out.line("return")
            out.insert(self._deparse)
            self._send(out)
            if self.features.clones_egress:
                out.line("packets.extend(copies)")
        out.blank()

    def _clone_egress(self, out: SourceWriter) -> None:
        """Write the clones of egress: same headers, metadata 0 except for the field list's."""
        out.comment("clone, egress to egress")
        out.line("copies = []")

        def call(kept: set[str]) -> None:
            values = {name: self.symbols.initial(name) for name in self.symbols.metadata_state if name not in kept}
            values |= {"packets": "copies", "truncate_to": f"session.truncate_bytes or {NO_LIMIT}"}
            values |= {"recirculate_id": "0"}
            values |= self._target_values(
                {"standard_metadata.instance_type": str(EGRESS_CLONE), "intrinsic_metadata.egress_rid": "rid"}
            )
            with out.block("for copy_port, rid in session.replicas:"):
                self._call_egress(out, "copy_port", values)

        self._clone(out, lambda: self.features.by_list(out, "clone_list", call))

    def _deparse_body(self) -> SourceWriter:
        out = SourceWriter(BODY)
        for checksum in self.symbols.program.checksums:
            if checksum.update:
                self._calculations.update(out, checksum)
        out.comment("deparse")
        out.line('out = b""')
        for header in self.symbols.program.deparser:
            with out.block(f"if {self.symbols.valid(header)}:"):
                out.line(f"out += {self._headers.emitted(header)}")
        out.line("out += payload")
        if self.features.truncates:  # BMv2 does not truncate recirculated packets
            unless = " and not recirculate_id" if self.features.recirculates else ""
            with out.block(f"if truncate_to < len(out){unless}:"):
                out.line("out = out[:truncate_to]")
        return out

    def _send(self, out: SourceWriter) -> None:
        if not self.features.recirculates:
            out.line("packets.append((port, out))")
            return
        with out.block("if recirculate_id:"):
            self._another_pass(out, "out", RECIRCULATED, "recirculate_id")
        with out.block("else:"):
            out.line("packets.append((port, out))")

    def _another_pass(self, out: SourceWriter, frame: str, instance_type: int, list_variable: str) -> None:
        """Write another ingress pass for `frame`; metadata starts at 0 except for the field list's."""

        def append(kept: set[str]) -> None:
            values = [name if name in kept else self.symbols.initial(name) for name in self.features.kept]
            if len(values) == 1:
                values.append("")
            out.listed(f"again.append(({frame}, 0, {instance_type}, 0, (", values, ")))")

        self.features.one_more_pass(out, lambda: self.features.by_list(out, list_variable, append))

    # -- ingress ---------------------------------------------------------------------------------------------

    def _ingress_body(self) -> SourceWriter:
        """Return the code between the parser and the end of the ingress control, and the digests."""
        out = SourceWriter(BODY)
        self._parser_results(out)
        ControlWriter(self.symbols).write(out, self.symbols.program.ingress)
        for learn_list in self.symbols.program.learn_lists.values():
            if not self.features.digests:
                break
            with out.block(f"if digest_id == {learn_list.id}:"):
                values = "".join(f"{self._exprs.unsigned(expr, width)}, " for _, expr, width in learn_list.values)
                name = self.symbols.bind("digest", learn_list.name, f"d_{learn_list.name}", literal(learn_list.name))
                out.line(f"digests.append(({name}, ({values})))")
        return out

    def _parser_results(self, out: SourceWriter) -> None:
        error = self.symbols.target("standard_metadata.parser_error")
        if error is not None:
            out.line(f"{error} = parser_error")
        result = self.symbols.target("standard_metadata.checksum_error")
        if result is None:
            return
        out.line(f"{result} = 0")
        for checksum in self.symbols.program.checksums:
            if checksum.verify:
                self._calculations.verify(out, checksum, result)

    def _write_ingress(self, out: SourceWriter) -> None:
        features = self.features
        params = ["frame", "port", "instance_type", "stamp", "keep"] if features.reenters_ingress else ["frame", "port"]
        params += ["now", "packets", "digests"] + (["again"] if features.reenters_ingress else [])
        again = features.reenters_ingress
        first = self._target_values(
            {
                "standard_metadata.ingress_port": "port",
                "intrinsic_metadata.ingress_global_timestamp": "stamp" if again else _TIME,
            }
        )
        after_kept = self._target_values(
            {
                "standard_metadata.packet_length": "size",
                "standard_metadata.instance_type": "instance_type" if again else str(NORMAL),
            }
        )
        after = self._after_ingress()
        state = self._needed([*self._parse.lines, *self._ingress.lines, *after.lines], first | after_kept)
        with out.function("ingress", params):
            out.line("size = frame_bytes = packet_bytes = len(frame)")
            self._headers.zero(out, state)
            for variable, text in first.items():
                out.line(f"{variable} = {text}")
            self._start_flags(out)
            if again and features.kept:
                with out.block("if keep is not None:"):
                    out.listed("(", [*features.kept, ""] if len(features.kept) == 1 else features.kept, ") = keep")
            for variable, text in after_kept.items():
                out.line(f"{variable} = {text}")
            out.insert(self._parse)
            out.insert(self._ingress)
            out.insert(after)
        out.blank()

    def _start_flags(self, out: SourceWriter) -> None:
        features = self.features
        flags = [
            *(["clone_session", "clone_list"] if features.clones else []),
            *(["digest_id"] if features.digests else []),
            *(["resubmit_id"] if features.resubmits else []),
            *(["recirculate_id"] if features.recirculates else []),
        ]
        if flags:
            out.line(" = ".join([*flags, "0"]))
        if features.truncates:
            out.line(f"truncate_to = {NO_LIMIT}")

    def _needed(self, lines: Iterable[str], given: Mapping[str, str]) -> list[str]:
        used = identifiers(lines) | set(self.egress_params)
        if self.features.reenters_ingress:
            used.update(self.features.kept)
        return [name for name in self.symbols.state if name in used and name not in given]

    def _after_ingress(self) -> SourceWriter:
        """Return the code that forwards the packet, in BMv2's order: clone, resubmit, multicast, unicast."""
        out = SourceWriter(BODY)
        if self.features.clones_ingress:
            out.comment("clone, ingress to egress")
            self._clone(
                out,
                lambda: self.features.by_list(out, "clone_list", lambda kept: self._clone_call(out, kept)),
            )
        if self.features.resubmits:
            with out.block("if resubmit_id:"):
                self._another_pass(out, "frame", RESUBMITTED, "resubmit_id")
                out.line("return")
        group = self.symbols.target("intrinsic_metadata.mcast_grp")
        if group is not None:
            groups = self.symbols.bind("helper", "groups", "groups_get", "rt.groups.get")
            values = self._target_values(
                {"standard_metadata.instance_type": str(REPLICATED), "intrinsic_metadata.egress_rid": "rid"}
            )
            values |= {"truncate_to": str(NO_LIMIT), "recirculate_id": "0"}
            with out.block(f"if {group}:"):
                with out.block(f"for copy_port, rid in {groups}({group}, ()):"):
                    self._call_egress(out, "copy_port", values)
                out.line("return")
        spec = self.symbols.target("standard_metadata.egress_spec")
        assert spec is not None
        with out.block(f"if {spec} != {self.symbols.constants.drop_port}:"):
            values = self._target_values({"standard_metadata.instance_type": str(NORMAL)})
            self._call_egress(out, spec, values)
        return out

    # -- clones ----------------------------------------------------------------------------------------------

    def _clone(self, out: SourceWriter, write: Callable[[], None]) -> None:
        """Write: if a clone was requested and its session exists, the copies."""
        sessions = self.symbols.bind("helper", "sessions", "sessions_get", "rt.sessions.get")
        with out.block("if clone_session:"):
            out.line(f"session = {sessions}(clone_session & {SESSION_MASK:#x})")
            with out.block("if session is not None:"):
                self.features.one_more_pass(out, write)

    @property
    def _clone_params(self) -> list[str]:
        again = ["again"] if self.features.recirculates else []
        return ["frame", "port", "now", "session", "packets", *again]

    @property
    def _kept_in_egress(self) -> list[str]:
        return [name for name in self.features.kept if name in self.egress_params]

    def _clone_call(self, out: SourceWriter, kept: set[str]) -> None:
        values = [name if name in kept else self.symbols.initial(name) for name in self._kept_in_egress]
        out.listed("clone_to_egress(", [*self._clone_params, *values], ")")

    def _write_clone(self, out: SourceWriter) -> None:
        """Write the function that parses the received packet again and sends it to egress."""
        names = [f"_kept_{number}" for number in range(len(self._kept_in_egress))]
        given = self._target_values({"standard_metadata.ingress_port": "port"})
        given = {name: text for name, text in given.items() if name in identifiers(self._parse.lines)}
        with out.function("clone_to_egress", [*self._clone_params, *names]):
            out.line("size = frame_bytes = packet_bytes = len(frame)")
            self._headers.zero(out, self._needed(self._parse.lines, given))
            for variable, text in given.items():
                out.line(f"{variable} = {text}")
            out.insert(self._parse)
            values = {name: self.symbols.initial(name) for name in self.symbols.metadata_state}
            values |= dict(zip(self._kept_in_egress, names, strict=True))
            values |= {"truncate_to": "truncate_to", "recirculate_id": "0"}
            values |= self._target_values(
                {
                    "standard_metadata.instance_type": str(INGRESS_CLONE),
                    "intrinsic_metadata.egress_rid": "rid",
                }
            )
            out.line(f"truncate_to = session.truncate_bytes or {NO_LIMIT}")
            with out.block("for copy_port, rid in session.replicas:"):
                self._call_egress(out, "copy_port", values)
        out.blank()


_GIVEN = (
    "standard_metadata.ingress_port",
    "standard_metadata.packet_length",
    "standard_metadata.instance_type",
    "intrinsic_metadata.ingress_global_timestamp",
    "intrinsic_metadata.egress_rid",
)
"""Target fields that ingress sets for egress whether or not the program's ingress mentions them."""
