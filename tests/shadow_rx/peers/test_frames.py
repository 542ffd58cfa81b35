"""Two shadow nodes that serve the same group fill each other's holes, by plain calls and over gRPC."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.peers.connections import GrpcPeer, Peer
from shadow_rx.peers.driver import PeerDriver
from shadow_rx.peers.repair import ask_peers, check_peers, give_frames, use_peers
from shadow_rx.serve.service import ShadowServer
from shadow_rx.status.events import StepReplicated
from tests.shadow_rx.twin import Twin, as_bytes, forever, upload
from tests.shadow_rx.twin import make_layout as small_layout
from tests.shadow_rx.wire import cut, make_job, replica
from topology.fabric.local_peer import LocalPeer


class Pair:
    """Two shadow nodes of one group, and the trainer that both follow, in a time of the test's own."""

    def __init__(self, window: int = 4, hold: int = 2) -> None:
        plain = make_job(shadows=2).model_dump(mode="json")
        plain["groups"][0]["shadows"] = ["sh0", "sh1"]
        self.job = type(make_job()).model_validate(plain)
        self.twin = Twin(self.job, small_layout(), "SGD", {"lr": 0.1, "momentum": 0.9})
        self.now = 0.0
        self.points: dict[str, dict[int, object]] = {"sh0": {}, "sh1": {}}
        self.truth: dict[int, object] = {}
        self.nodes = {name: self._node(name, ShadowOptions(window, hold)) for name in ("sh0", "sh1")}
        self.peers: dict[str, Peer] = {name: LocalPeer(node) for name, node in self.nodes.items()}

    def _node(self, name: str, options: ShadowOptions) -> ShadowNode:
        def observe(event: object) -> None:
            if isinstance(event, StepReplicated):
                self.points[name][event.snapshot.step] = as_bytes(event.snapshot.tensors)

        node = ShadowNode(ShadowCore(self.job, name, options), lambda: self.now, observe=observe)
        use_peers(node, ["sh0", "sh1"])
        node.attach(self.twin.attach())
        upload(node, 1, self.twin.state_bytes())
        for message in self.twin.open_flows():
            node.open_flow(message)
        return node

    def train(self) -> dict[str, list[bytes]]:
        """Train a step and return each node's replicas of it."""
        gradient = self.twin.train()
        self.truth[self.twin.step] = as_bytes(self.twin.state())
        return {
            name: [
                replica(self.job, p.flow, 40000 + p.flow.id, p.position + 1, p.data, shadow=name)
                for stretch in self.twin.stretches(gradient)
                for p in cut(stretch, forever(100))
            ]
            for name in self.nodes
        }

    def send(self, name: str, frames: Iterable[bytes]) -> None:
        self.now += 1e-3
        self.nodes[name].on_frames(frames)

    def record(self) -> None:
        for node in self.nodes.values():
            for message in self.twin.records():
                node.record(message)

    def ask(self, seconds: float = 0.1) -> int:
        """Let both nodes ask each other once."""
        self.now += seconds
        return sum(ask_peers(node, self.peers) for node in self.nodes.values())

    def check(self) -> None:
        for points in self.points.values():
            for step, state in points.items():
                assert state == self.truth[step], step


def test_each_fills_the_holes_of_the_other() -> None:
    pair = Pair()
    first = pair.train()
    pair.record()
    pair.send("sh0", first["sh0"][2:])
    pair.send("sh1", first["sh1"])
    assert list(pair.points["sh0"]) == []
    assert pair.ask() > 0
    second = pair.train()
    pair.record()
    pair.send("sh0", second["sh0"])
    pair.send("sh1", second["sh1"][:-3])
    assert pair.ask() > 0
    assert [list(points) for points in pair.points.values()] == [[1, 2], [1, 2]]
    pair.check()
    for name, step in (("sh0", 1), ("sh1", 2)):
        report = next(r for r in pair.nodes[name].core.group("dp0").ledger.history.reports() if r.step == step)
        assert 0 < report.peer_bytes < report.replica_bytes
        assert report.repaired_bytes == 0
    assert pair.ask() == 0, "nothing is asked for when nothing is missing"


def test_what_neither_has_is_given_up_after_a_while() -> None:
    pair = Pair(window=2)
    for _ in range(4):
        frames = pair.train()
        pair.record()
        for name in pair.nodes:
            pair.send(name, frames[name][1:] if pair.twin.step == 1 else frames[name])
        pair.ask()
    status = pair.nodes["sh0"].status("dp0")
    assert status.replica_step == 0
    assert status.trained_step == 4
    assert not pair.nodes["sh0"].core.group("dp0").progress.settled(1), "another shadow may still have it"
    for _ in range(3):
        pair.ask(seconds=0.6)
    for name in pair.nodes:
        assert pair.nodes[name].core.group("dp0").progress.settled(1)
        gap = pair.nodes[name].explain("dp0", 1)
        assert gap is not None
        assert gap.reason is GapReason.LOST_BYTES
    assert pair.points == {"sh0": {}, "sh1": {}}


def test_a_node_that_is_far_behind_catches_up_from_what_is_held() -> None:
    pair = Pair(window=2, hold=8)
    for _ in range(6):
        frames = pair.train()
        pair.record()
        pair.send("sh1", frames["sh1"])
        # From the second step on bytes overrun the window of the node that waits for the first step.
        pair.send("sh0", frames["sh0"][1:])
    assert list(pair.points["sh1"]) == [1, 2, 3, 4, 5, 6]
    assert list(pair.points["sh0"]) == []
    for _ in range(8):
        pair.ask()
    assert list(pair.points["sh0"]) == [1, 2, 3, 4, 5, 6]
    pair.check()


@pytest.mark.parametrize("seed", range(8))
def test_two_lossy_nodes_have_together_what_either_received(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(window=rng.choice([2, 4]), hold=4)
    unlucky = 0
    for _ in range(8):
        frames = pair.train()
        pair.record()
        kept = {name: [f for f in frames[name] if rng.random() >= 0.1] for name in pair.nodes}
        # Replicas of the two nodes differ in their addresses only: the same index is the same bytes.
        index = {name: {f[54:] for f in kept[name]} for name in pair.nodes}
        unlucky += any(f[54:] not in index["sh0"] | index["sh1"] for f in frames["sh0"])
        for name in pair.nodes:
            rng.shuffle(kept[name])
            pair.send(name, kept[name])
        for _ in range(2):
            pair.ask()
    pair.check()
    if not unlucky:
        assert [list(points) for points in pair.points.values()] == [list(range(1, 9))] * 2
    else:
        assert all(list(points) == list(range(1, len(points) + 1)) for points in pair.points.values())


class _Liar:
    """A peer that damages what it gives."""

    def __init__(self, honest: Peer, rng: random.Random) -> None:
        self.honest, self.rng = honest, rng

    def frames(self, request: pb.FramesRequest) -> Iterator[pb.FrameBytes]:
        for piece in self.honest.frames(request):
            data = bytearray(piece.data)
            data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
            start = self.rng.choice([piece.start, piece.start, 1 << 40, piece.start + 3])
            key = self.rng.choice([piece.frame, piece.frame, pb.FrameKey(flow_id=99), pb.FrameKey(flow_id=3, index=9)])
            yield pb.FrameBytes(frame=key, start=start, data=bytes(data))


@pytest.mark.parametrize("seed", range(5))
def test_what_a_peer_gives_wrongly_is_never_believed(seed: int) -> None:
    pair = Pair()
    liar = _Liar(pair.peers["sh1"], random.Random(seed))
    frames = pair.train()
    pair.record()
    pair.send("sh0", frames["sh0"][2:])
    pair.send("sh1", frames["sh1"])
    for _ in range(3):
        pair.now += 0.1
        ask_peers(pair.nodes["sh0"], {"sh1": liar})
    assert list(pair.points["sh0"]) == []
    # What it told is no obstacle either: the replica that was lost comes, or an honest answer does.
    if seed % 2:
        pair.send("sh0", frames["sh0"][:2])
    else:
        pair.ask()
    assert list(pair.points["sh0"]) == [1]
    pair.check()


def test_what_is_there_of_the_same_job_and_epoch_is_given() -> None:
    pair = Pair()
    frames = pair.train()
    node = pair.nodes["sh0"]
    pair.send("sh0", frames["sh0"][2:])
    wanted = [pb.FrameKey(flow_id=c.flow_id, index=c.slot.index) for c in _primaries(node)]

    def given(**changes: object) -> list[pb.FrameBytes]:
        fields = {"job": "test", "group": "dp0", "epoch": 1, "step": 1, "frames": wanted}
        return list(give_frames(node, pb.FramesRequest(**{**fields, **changes})))  # type: ignore[arg-type]

    missing = sum(len(frame) - 54 for frame in frames["sh0"][:2])
    assert sum(len(piece.data) for piece in given()) == sum(f.size for f in _frames(node)) - missing
    assert given(step=2) == given(step=9) == []
    assert given(frames=[pb.FrameKey(flow_id=77), pb.FrameKey(flow_id=3, index=10**6)]) == []
    for field, value in (("job", "other"), ("group", "dp7"), ("epoch", 2)):
        with pytest.raises(ShadowError, match=str(value)):
            given(**{field: value})


def _frames(node: ShadowNode) -> tuple:  # type: ignore[type-arg]
    epoch = node.core.group("dp0").progress.epoch
    assert epoch is not None
    return epoch.assembler.slot(1).frames


def _primaries(node: ShadowNode) -> list:  # type: ignore[type-arg]
    return [frame.primary for frame in _frames(node)]


def test_peers_over_grpc_in_a_thread() -> None:
    pair = Pair()
    node = pair.nodes["sh0"]
    server = ShadowServer(pair.nodes["sh1"], "127.0.0.1:0")
    absent = GrpcPeer("127.0.0.1:1")
    try:
        frames = pair.train()
        pair.record()
        pair.send("sh1", frames["sh1"])
        pair.send("sh0", frames["sh0"][2:])
        pair.now += 0.1
        assert ask_peers(node, {"sh1": absent}) == 0, "a peer that is not there is passed over"
        with PeerDriver(node, {"sh1": server.address}):
            assert node.wait_for_step("dp0", 1, 0.3, lambda: True).replica_step == 0, "the grace is not over"
            pair.now += 0.1
            status = node.wait_for_step("dp0", 1, 20.0, lambda: True)
        assert status.replica_step == 1
    finally:
        absent.close()
        server.stop()
    pair.check()


def test_a_peer_must_serve_the_same_group() -> None:
    pair = Pair()
    core = pair.nodes["sh0"].core
    check_peers(core, ["sh1"])
    for name in ("sh0", "sh7"):
        with pytest.raises(ShadowError, match="those that do: sh1"):
            check_peers(core, [name])
