"""The execution core of the embedded switch: a compiled P4 program with its state, as a plain object.

No sockets, threads or clocks: frames and time go in, frames and digests come out. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, MappingProxyType
from typing import Any, NamedTuple

from softswitch.codegen.module import generate
from softswitch.codegen.symbols import Constants
from softswitch.errors import ErrorKind, SwitchError, UnsupportedProgram
from softswitch.program.ir import Program
from softswitch.program.load import load_program
from softswitch.runtime import CloneSession, Runtime
from softswitch.state import CounterArray, DigestField, DigestSpec, RegisterArray, Table

PASS_LIMIT = 256
"""Extra passes (clones, resubmissions, recirculations) that one received frame may cause; BMv2 has no such
limit and loops forever on a program that always recirculates."""

_MAX_PORT = 0x1FF
_MAX_SESSION = 0x7FFF
_MAX_GROUP = 0xFFFF
_MAX_RID = 0xFFFF


class Output(NamedTuple):
    """The result of processing one frame.

    Attributes:
        packets: (egress port, frame) in the order in which they are sent.
        digests: (digest name, values) in the order in which they were generated.
    """

    packets: list[tuple[int, bytes]]
    digests: list[tuple[str, tuple[int, ...]]]


class SwitchCore:
    """One v1model program, loaded from p4c's BMv2 JSON. It behaves like BMv2's simple_switch, except:

    * a field of an invalid header reads 0 (BMv2: what an earlier packet left);
    * a lookahead beyond the end of the packet is PacketTooShort (BMv2 reads past its buffer);
    * an access outside a register or counter array does nothing (BMv2, built without checks: undefined);
    * direct counters also count the default action's packets, and clone sessions can truncate their clones;
    * there are no queues: enq_timestamp is the current time, all other queueing metadata 0;
    * a frame causes at most PASS_LIMIT extra passes; log_msg() is ignored.

    Attributes:
        program: the loaded program.
        tables, counters, registers, digests: by P4 name.
        cpu_port: port of the controller, None if there is none; the core treats its frames like others.
        drop_port: value of egress_spec that drops.
        generated_source: the Python module that executes the program, for reading and debugging.
    """

    def __init__(
        self,
        config: bytes | str | dict[str, object],
        *,
        cpu_port: int | None = None,
        drop_port: int = 511,
        seed: int = 0,
    ) -> None:
        """Load a program; `seed` starts P4's random().

        Raises:
            UnsupportedProgram: not a BMv2 JSON, or a program that this switch does not support.
        """
        if cpu_port == drop_port:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"port {cpu_port} is the drop port", "cpu_port")
        program = load_program(config)
        self.program: Program = program
        self.cpu_port = cpu_port
        self.drop_port = drop_port
        self.tables: Mapping[str, Table] = MappingProxyType({node.name: Table(node.spec) for node in program.tables()})
        self.counters: Mapping[str, CounterArray] = MappingProxyType(
            {item.name: CounterArray(item.name, item.size) for item in program.counters.values()}
        )
        self.registers: Mapping[str, RegisterArray] = MappingProxyType(
            {item.name: RegisterArray(item.name, item.size, item.width) for item in program.registers.values()}
        )
        self.digests: Mapping[str, DigestSpec] = MappingProxyType(_digests(program))
        self.generated_source, code = _compile(program, Constants(drop_port, PASS_LIMIT))
        self._seed = seed
        self._runtime = Runtime(self.tables, self.counters, self.registers)
        self._runtime.random.seed(seed)
        self._process = _build(code, self._runtime)

    # -- packets ---------------------------------------------------------------------------------------------

    def process(self, port: int, frame: bytes, now_us: int = 0) -> Output:
        """Process one frame received on `port` at time `now_us` (microseconds since the switch started).

        Raises:
            SwitchError: INVALID_ARGUMENT for a port number outside v1model's range.
        """
        if not 0 <= port <= _MAX_PORT:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"not a port number in 0..{_MAX_PORT}", f"port {port}")
        packets, digests = self._process(frame, port, now_us)
        return Output(packets, digests)

    @property
    def cut_off_passes(self) -> int:
        """Passes that were cut off because a frame exceeded PASS_LIMIT."""
        return self._runtime.cut_off[0]

    def reset(self) -> None:
        """Return to the state of a freshly loaded program."""
        for table in self.tables.values():
            table.reset()
        for counter in self.counters.values():
            counter.reset()
        for register in self.registers.values():
            register.reset()
        self._runtime.groups.clear()
        self._runtime.sessions.clear()
        self._runtime.random.seed(self._seed)
        self._runtime.cut_off[0] = 0

    # -- replication -----------------------------------------------------------------------------------------

    def set_multicast_group(self, group_id: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Create or replace a multicast group; `replicas` are (egress port, replica id), each at most once.

        Raises:
            SwitchError: INVALID_ARGUMENT.
        """
        place = f"multicast group {group_id}"
        if not 1 <= group_id <= _MAX_GROUP:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"the id is not in 1..{_MAX_GROUP}", place)
        self._runtime.groups[group_id] = _checked_replicas(replicas, place)

    def delete_multicast_group(self, group_id: int) -> None:
        """Remove a multicast group.

        Raises:
            SwitchError: NOT_FOUND.
        """
        if self._runtime.groups.pop(group_id, None) is None:
            raise SwitchError(ErrorKind.NOT_FOUND, "there is no such group", f"multicast group {group_id}")

    def multicast_groups(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the replicas (egress port, replica id) of every group by id."""
        return dict(self._runtime.groups)

    def set_clone_session(self, session_id: int, replicas: Sequence[tuple[int, int]], truncate_bytes: int = 0) -> None:
        """Create or replace a clone session; clones are cut to `truncate_bytes` unless that is 0.

        Raises:
            SwitchError: INVALID_ARGUMENT.
        """
        place = f"clone session {session_id}"
        if not 1 <= session_id <= _MAX_SESSION:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"the id is not in 1..{_MAX_SESSION}", place)
        if truncate_bytes < 0:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"truncation to {truncate_bytes} bytes", place)
        self._runtime.sessions[session_id] = CloneSession(_checked_replicas(replicas, place), truncate_bytes)

    def delete_clone_session(self, session_id: int) -> None:
        """Remove a clone session.

        Raises:
            SwitchError: NOT_FOUND.
        """
        if self._runtime.sessions.pop(session_id, None) is None:
            raise SwitchError(ErrorKind.NOT_FOUND, "there is no such session", f"clone session {session_id}")

    def clone_sessions(self) -> dict[int, CloneSession]:
        """Return the clone sessions by id."""
        return dict(self._runtime.sessions)


def _checked_replicas(replicas: Sequence[tuple[int, int]], place: str) -> tuple[tuple[int, int], ...]:
    seen: set[tuple[int, int]] = set()
    for port, rid in replicas:
        if port < 0 or not 0 <= rid <= _MAX_RID:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"port {port} with replica id {rid}", place)
        if (port, rid) in seen:
            raise SwitchError(ErrorKind.INVALID_ARGUMENT, f"port {port} with replica id {rid} twice", place)
        seen.add((port, rid))
    return tuple((port, rid) for port, rid in replicas)


def _digests(program: Program) -> dict[str, DigestSpec]:
    """Return the digests by name; several calls with one P4 type share the name."""
    found: dict[str, DigestSpec] = {}
    for item in program.learn_lists.values():
        fields = tuple(DigestField(name, width) for name, _, width in item.values)
        found.setdefault(item.name, DigestSpec(item.name, item.id, fields))
    return found


_Process = Callable[[bytes, int, int], tuple[list[tuple[int, bytes]], list[tuple[str, tuple[int, ...]]]]]


def _compile(program: Program, constants: Constants) -> tuple[str, CodeType]:
    """Return the generated module and its code."""
    try:
        source = generate(program, constants)
        return source, compile(source, "<softswitch>", "exec")
    except (RecursionError, MemoryError, SyntaxError) as error:  # Python's errors for code that is nested too deeply
        what = (
            f"a program whose statements or expressions are nested so deeply is not supported by this switch: {error}"
        )
        raise UnsupportedProgram(what, "program") from error


def _build(code: CodeType, runtime: Runtime) -> _Process:
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    process: _Process = namespace["build"](runtime)
    return process
