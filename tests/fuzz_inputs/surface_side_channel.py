"""The side channel: requests of every call to a real server, and the files that keep them.

Whatever comes: a call is answered with a status of the contract, what is published is what the trainer holds, and the
trainer's next steps are published. A log that is damaged is read up to the damage, and can be gone on with.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from checkmate_common.sidechannel import side_channel_pb2 as pb
from checkmate_common.sidechannel.log import SideChannelLog, SideChannelLogError, pack, read_log
from checkmate_common.sidechannel.upload import state_chunks, state_header
from shadow_rx.core import ShadowCore
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.serve.service import ShadowServer
from shadow_rx.status.events import Event, StepReplicated
from tests.fuzz_inputs.damage import damaged
from tests.shadow_rx.twin import Twin, as_bytes, make_layout
from tests.shadow_rx.wire import make_job

NAME = "side_channel"
TEST_COUNT = 300
PER_CALL = 50
_ANSWERS = frozenset({
    "OK", "INVALID_ARGUMENT", "FAILED_PRECONDITION", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNAVAILABLE", "UNIMPLEMENTED",
})  # fmt: skip
_WORDS = [
    b"\x00", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\xff" * 10, b"\xff\xff\xff\xff\x0f", b"\x0a\x00",
    b"dp0", b"test", b"layer.0", b"AdamW", b"SGD", b"LBFGS", b"float32", b"bfloat16", b"{}", b"[]", b"null", b"NaN",
    b"1e999", b'"\\ud800"', b"[" * 300, b'{"lr": -1}', b"optim/layer.0/exp_avg", b"model.", b"\xed\xa0\x80",
]  # fmt: skip
_NUMBERS = (0, 1, 2, 3, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1)
_TEXTS = ("", "dp0", "test", "x", "layer.0", "\x00", "\u2028", "a" * 5000, "{}", "[]", "NaN", '{"a": 1e999}', "[" * 500)


def run(rng: random.Random, count: int) -> int:
    """Try `count` requests and logs, while a job goes on."""
    trainer = _Trainer(rng.randrange(1000))
    tried: list[str] = []
    try:
        trainer.begin()
        for _ in range(count):
            if rng.random() < 0.15:
                _log(rng, trainer, tried)
                continue
            call, pieces = rng.choice(_REQUESTS)(rng, trainer)
            tried.append(f"{call} {[piece.hex() for piece in pieces]}")
            code = trainer.call(call, pieces)
            answers = _ANSWERS | ({"DEADLINE_EXCEEDED"} if call == "WaitForStep" else set())
            assert code in answers, f"it was answered {code}"
            if rng.random() < 0.2:
                trainer.step(rng.random() < 0.8)
        trainer.go_on()
    except Exception as error:
        shown = "\n".join(text[:4000] for text in tried[-12:])
        raise AssertionError(f"{type(error).__name__}: {error}, after these:\n{shown}") from error
    finally:
        trainer.close()
    return count


class _Trainer:
    """A job that is told right, on a server that others call, too."""

    def __init__(self, seed: int) -> None:
        self.job = make_job(digests=True)
        self.twin = Twin(self.job, make_layout(), seed=seed)
        self.truth: dict[int, object] = {}
        self.epoch = 0
        self.port = 40000
        self.first_step = 1
        core = ShadowCore(self.job, "sh0", ShadowOptions(memory_limit=32 << 20))
        self.node = ShadowNode(core, time.monotonic, observe=self._observe)
        self.server = ShadowServer(self.node, f"unix:{_folder()}/side.sock")
        self._channel = grpc.insecure_channel(self.server.address, [("grpc.use_local_subchannel_pool", 1)])
        self._wrong: list[str] = []
        self._train()

    def close(self) -> None:
        self._channel.close()
        self.server.stop(0)
        self.node.close()

    def _observe(self, event: Event) -> None:
        if isinstance(event, StepReplicated):
            found = event.snapshot
            if as_bytes(found.tensors) != self.truth.get(found.step):
                self._wrong.append(f"step {found.step} of epoch {found.epoch} was published wrong")

    def _train(self) -> list[bytes]:
        gradient = self.twin.train()
        self.truth[self.twin.step] = as_bytes(self.twin.state())
        return gradient

    def call(self, call: str, pieces: list[bytes]) -> str:
        """Make a call with the bytes of its messages; return the code that answers it."""
        path = f"/checkmate.v1.Shadow/{call}"
        timeout = 0.2 if call == "WaitForStep" else 60.0
        try:
            if call == "UploadState":
                self._channel.stream_unary(path, _as_is, _as_is)(iter(pieces), timeout=timeout)
            elif call in ("GetRecoveryPoint", "GetFrames"):
                list(self._channel.unary_stream(path, _as_is, _as_is)(pieces[0], timeout=timeout))
            else:
                self._channel.unary_unary(path, _as_is, _as_is)(pieces[0], timeout=timeout)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def begin(self) -> None:
        """Begin a new epoch, as after a crash of the ranks."""
        self.epoch = self.node.status("dp0").epoch + 1
        self.first_step, self.port = self.twin.step + 1, self.port + 10
        attach = self.twin.attach(self.epoch, communicator=f"c{self.epoch}", uploads_on_demand=True)
        if self.node.attach(attach):
            self._upload(0)
        for message in self.twin.open_flows(self.epoch, self.port):
            self.node.open_flow(message)

    def _upload(self, step: int) -> None:
        state = self.twin.state_bytes()
        self.node.upload(state_header("dp0", self.epoch, state, step), state)

    def step(self, whole: bool = True) -> None:
        """Train a step, and tell the shadow of it; not `whole`: some of its frames are lost."""
        status = self.node.status("dp0")
        if status.epoch != self.epoch:
            if status.epoch >= (1 << 32) - 1:
                return  # no epoch can follow
            self.begin()
        frames = self.twin.frames(self._train(), self.epoch, self.first_step, port=self.port)
        self.node.on_frames(frames if whole else frames[1:])
        for record in self.twin.records(self.epoch, digest=True):
            # A request may have told another record of this step before: then this epoch cannot go on with it.
            if self.call("RecordStep", [record.SerializeToString()]) != "OK":
                break
        asked = self.node.core.group("dp0").needs(0)
        if asked.state_wanted and asked.state_from <= self.twin.step:
            self._upload(self.twin.step)
        assert not self._wrong, self._wrong[0]

    def go_on(self) -> None:
        """See that the shadow still serves: a new epoch's steps are published."""
        if self.node.status("dp0").epoch < (1 << 32) - 1:
            self.begin()
            for _ in range(2):
                self.step()
            status = self.node.status("dp0")
            assert status.replica_step == self.twin.step, f"the next steps are not published: {status.gaps[:2]}"
        assert not self._wrong, self._wrong[0]


# ---- requests ----


def _attach(rng: random.Random, trainer: _Trainer) -> tuple[str, list[bytes]]:
    message = trainer.twin.attach(trainer.epoch + rng.choice((0, 0, 1)))
    message.communicator = rng.choice(("", f"c{trainer.epoch}", "other"))
    message.rejoin = rng.random() < 0.3
    return "Attach", [_changed(rng, message)]


def _upload(rng: random.Random, trainer: _Trainer) -> tuple[str, list[bytes]]:
    state = trainer.twin.state_bytes()
    if rng.random() < 0.5:
        state = damaged(rng, state, _WORDS)
    header = state_header("dp0", trainer.epoch, state, rng.choice((0, trainer.twin.step, trainer.twin.step + 1)),
                          final=rng.random() < 0.3)  # fmt: skip
    chunks = list(state_chunks(header, state, rng.choice((500, 5000))))
    if rng.random() < 0.5:
        return "UploadState", [chunk.SerializeToString() for chunk in chunks]
    return "UploadState", [
        _changed(rng, chunk) if rng.random() < 0.5 else chunk.SerializeToString() for chunk in chunks
    ]


def _record(rng: random.Random, trainer: _Trainer) -> tuple[str, list[bytes]]:
    message = rng.choice(trainer.twin.records(trainer.epoch, digest=True))
    message.step += rng.choice((0, 0, 1, 2))
    return "RecordStep", [_changed(rng, message)]


def _others(rng: random.Random, trainer: _Trainer) -> tuple[str, list[bytes]]:
    group, epoch, step = "dp0", trainer.epoch, trainer.twin.step
    attach = trainer.twin.attach(epoch)
    messages: list[tuple[str, Message]] = [
        ("OpenFlow", pb.OpenFlowRequest(group=group, epoch=epoch, flow_id=3, source_port=trainer.port + 500)),
        ("Change", pb.ChangeRequest(group=group, epoch=epoch, effective_step=step + 2, optimizer=attach.optimizer,
                                    layout_json=attach.layout_json)),
        ("GetStatus", pb.StatusRequest(group=group)),
        ("GetNodeStatus", pb.NodeStatusRequest(group=group)),
        ("WaitForStep", pb.WaitRequest(group=group, step=step, timeout_seconds=0.0)),
        ("GetRecoveryPoint", pb.RecoveryPointRequest(group=group, step=step)),
        ("GetFrames", pb.FramesRequest(job="test", group=group, epoch=epoch, step=step,
                                       frames=[pb.FrameKey(flow_id=3, index=1)])),
    ]  # fmt: skip
    call, message = rng.choice(messages)
    return rng.choice((call, call, call, call, call, "Nope")), [_changed(rng, message)]


_REQUESTS: tuple[Callable[[random.Random, _Trainer], tuple[str, list[bytes]]], ...] = (
    _attach, _upload, _record, _record, _others, _others,
)  # fmt: skip


def _changed(rng: random.Random, message: Message) -> bytes:
    """Return a message with other values in some fields, or damaged as bytes, or as it is."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        _set(rng, message)
    data = message.SerializeToString()
    return damaged(rng, data, _WORDS) if rng.random() < 0.4 else data


def _set(rng: random.Random, message: Message) -> None:
    """Give one field of a message, or of one within it, another value."""
    field = rng.choice(message.DESCRIPTOR.fields)
    value: Any = getattr(message, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        name = rng.choice((*value, *_TEXTS))
        _set(rng, value[name])
    elif field.is_repeated:
        if field.message_type is None:
            value.extend(rng.choice(_values(field)) for _ in range(rng.choice((1, 1, 40))))
        elif value and rng.random() < 0.7:
            _set(rng, rng.choice(value))
        else:
            value.add()
    elif field.message_type is not None:
        _set(rng, value)
    else:
        try:
            setattr(message, field.name, rng.choice(_values(field)))
        except ValueError:
            message.ClearField(field.name)  # a number that the type does not have


def _values(field: Any) -> tuple[Any, ...]:
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return (0.0, -1.0, float("nan"), float("inf"), 1e308)
    if field.cpp_type == field.CPPTYPE_BOOL:
        return (False, True)
    if field.cpp_type == field.CPPTYPE_STRING:
        return tuple(text.encode() for text in _TEXTS) if field.type == field.TYPE_BYTES else _TEXTS
    if field.is_repeated:
        return _NUMBERS[:9] if field.cpp_type == field.CPPTYPE_UINT32 else _NUMBERS
    return _NUMBERS


# ---- logs ----


def _log(rng: random.Random, trainer: _Trainer, tried: list[str]) -> None:
    """Damage a log, read it, and go on with it as a shadow node does that is started again."""
    path = _folder() / "side-channel.bin"
    messages = [trainer.twin.attach(1), *trainer.twin.open_flows(), *trainer.twin.records(1)]
    path.unlink(missing_ok=True)
    _write(path, messages)
    data = damaged(rng, path.read_bytes(), [b"CKMTSC\x00\x01", b"\xff\xff\xff\xff", *_WORDS])
    path.write_bytes(data)
    tried.append(f"log {data.hex()}")
    found = list(_whole(path))
    assert all(entry.SerializeToString() for entry in found)
    last = pb.StepRecord(group="dp0", epoch=1, step=99)
    try:
        _write(path, [last])
    except SideChannelLogError:
        assert path.read_bytes() == data, "a file that is no log was changed"
        return
    assert list(_whole(path))[-1:] == [last], "what is added is not found"


def _write(path: Path, messages: list[Any]) -> None:
    log = SideChannelLog(path)
    try:
        log.append(pack(message) for message in messages)
    finally:
        log.close()


def _whole(path: Path) -> Iterator[Message]:
    try:
        for entry in read_log(path):
            yield entry.message
    except SideChannelLogError:
        return


def _as_is(data: bytes) -> bytes:
    return data


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="checkmate-fuzz-"))
