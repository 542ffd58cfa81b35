"""A shadow node that is started again with an empty or older storage takes the newest point of another node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from checkmate_common.files.checked_json import with_checksum, without_checksum
from checkmate_common.recovery.reasons import GapReason
from checkmate_common.sidechannel import side_channel_pb2 as pb
from jobspec.model import Job
from shadow_rx.core import ShadowCore
from shadow_rx.errors import ShadowError
from shadow_rx.node import ShadowNode
from shadow_rx.options import ShadowOptions
from shadow_rx.peers.connections import GrpcPeer, Peer
from shadow_rx.peers.points import PeerOffer, read_point, worth_asking
from shadow_rx.peers.resume import Resumed, resume_from_peers
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.publish.snapshot import EncodedPoint, encode
from shadow_rx.serve.service import ShadowServer
from shadow_rx.status.events import Event, StateAdopted, StepLost, StepReplicated
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.twin import Twin, as_bytes, make_layout, upload
from tests.shadow_rx.wire import make_job, replica
from topology.fabric.local_peer import LocalPeer


def both() -> Job:
    plain = make_job(shadows=2).model_dump(mode="json")
    plain["groups"][0]["shadows"] = ["sh0", "sh1"]
    return Job.model_validate(plain)


class Peers:
    """Two shadow nodes with a store each, and the trainer that both follow; the first can be started again."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.job, self.root, self.options = both(), root, ShadowOptions(**options)
        self.twin = Twin(self.job, make_layout())
        self.attach = self.twin.attach(communicator="c", uploads_on_demand=True)
        self.events: dict[str, list[Event]] = {"sh0": [], "sh1": []}
        self.truth: dict[int, object] = {}
        self.stores: dict[str, RecoveryStore] = {}
        self.nodes = {name: self.start(name) for name in ("sh0", "sh1")}
        for node in self.nodes.values():
            node.attach(self.attach)
            upload(node, 1, self.twin.state_bytes())
            self.announce(node)

    def start(self, name: str, resume: bool = False, folder: str | None = None) -> ShadowNode:
        core = ShadowCore(self.job, name, self.options)
        store = self.stores[name] = RecoveryStore(self.root / (folder or name), resume=resume)
        if resume:
            core.group("dp0").resume(store.points("dp0"))
        return ShadowNode(core, lambda: 0.0, DirectPublisher(store), self.events[name].append)

    def announce(self, node: ShadowNode) -> None:
        for message in self.twin.open_flows():
            node.open_flow(message)

    def restart(self, folder: str | None = None) -> ShadowNode:
        """Kill the first node; start it again with its storage, or with another folder."""
        self.stores["sh0"].close()
        self.nodes["sh0"] = self.start("sh0", resume=True, folder=folder)
        return self.nodes["sh0"]

    def train(self, *alive: str) -> None:
        """Train a step that the nodes `alive` see."""
        stretches = self.twin.stretches(self.twin.train())
        self.truth[self.twin.step] = as_bytes(self.twin.state())
        for name in alive:
            node = self.nodes[name]
            node.on_frames(
                replica(self.job, p.flow, 40000 + p.flow.id, p.position + 1, p.data, shadow=name) for p in stretches
            )
            for record in self.twin.records():
                node.record(record)

    def rejoin(self, node: ShadowNode) -> None:
        self.attach.rejoin, self.attach.current_step = True, self.twin.step
        node.attach(self.attach)
        self.announce(node)

    def check(self) -> None:
        """Assert that whatever was ever published, adopted or stored is what the trainer held."""
        for events in self.events.values():
            for event in events:
                if isinstance(event, StepReplicated | StateAdopted):
                    assert as_bytes(event.snapshot.tensors) == self.truth[event.snapshot.step]


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    peers = Peers(tmp_path)
    yield peers
    for store in peers.stores.values():
        store.close()


def test_only_newer_points_are_worth_asking_for() -> None:
    a, b, old, none, unknown = (PeerOffer("a", 2, 7), PeerOffer("b", 3, 5), PeerOffer("c", 2, 4), PeerOffer("d", 9, 0),
                                PeerOffer("e", 0, 2))  # fmt: skip
    assert worth_asking((2, 4), [unknown, none, old, a, b]) == [b, a, unknown]
    assert worth_asking((0, 0), [none]) == []
    assert worth_asking((3, 5), [a, b]) == []


def test_an_empty_node_takes_the_newest_point(peers: Peers) -> None:
    for _ in range(4):
        peers.train("sh0", "sh1")
    node = peers.restart(folder="new")
    given = encode_of(peers.nodes["sh1"])
    assert resume_from_peers(node, {"sh1": LocalPeer(peers.nodes["sh1"])}) == [Resumed("dp0", "sh1", 4, 1, ())]
    status = node.status("dp0")
    assert (status.trained_step, status.replica_step, status.durable_step) == (4, 4, 4)
    assert node.recovery_point("dp0", 0) == given
    assert peers.stores["sh0"].read("dp0", 1, 4) == given
    [adopted] = [event for event in peers.events["sh0"] if isinstance(event, StateAdopted)]
    assert (adopted.peer, adopted.since) == ("sh1", 1)
    # The ranks come back: steps that only the other node has are reported, and a state is asked for as usual.
    peers.train("sh1")
    peers.rejoin(node)
    lost = {event.gap.step: event.gap for event in peers.events["sh0"] if isinstance(event, StepLost)}
    assert set(lost) == {1, 2, 3}
    assert all(gap.reason is GapReason.RESYNC_PENDING and "step 4 of sh1" in gap.detail for gap in lost.values())
    for record in peers.twin.records():
        node.record(record)
    assert node.core.group("dp0").needs(0).state_wanted
    assert upload(node, 1, peers.twin.state_bytes(), 5)
    assert node.status("dp0").durable_step == 5
    peers.train("sh0", "sh1")
    assert node.status("dp0").durable_step == 6
    peers.check()


def encode_of(node: ShadowNode) -> EncodedPoint:
    snapshot = node.core.group("dp0").ledger.point(0)
    assert snapshot is not None
    return encode(snapshot)


def test_an_older_storage_is_kept_and_what_lies_between_is_reported(peers: Peers) -> None:
    for step in range(1, 7):
        peers.train(*(["sh0", "sh1"] if step <= 2 else ["sh1"]))
    node = peers.restart()
    [resumed] = resume_from_peers(node, {"sh1": LocalPeer(peers.nodes["sh1"])})
    assert (resumed.peer, resumed.step, resumed.since) == ("sh1", 6, 3)
    assert "steps 3 to 5 are not here" in str(resumed)
    peers.rejoin(node)
    assert {event.gap.step for event in peers.events["sh0"] if isinstance(event, StepLost)} == {3, 4, 5}
    for step in (1, 2, 6):
        assert node.explain("dp0", step) is None
    peers.check()


def test_nothing_is_taken_that_is_not_newer(peers: Peers) -> None:
    for _ in range(3):
        peers.train("sh0", "sh1")
    node = peers.restart()
    [resumed] = resume_from_peers(node, {"sh1": LocalPeer(peers.nodes["sh1"])})
    assert (resumed.peer, resumed.step, resumed.troubles) == (None, 3, ())
    snapshot = peers.nodes["sh1"].core.group("dp0").ledger.point(0)
    assert snapshot is not None
    with pytest.raises(ShadowError, match="not newer"):
        node.core.group("dp0").adopt(snapshot, "sh1", 0.0)
    peers.rejoin(node)
    with pytest.raises(ShadowError, match="attached already"):
        node.core.group("dp0").adopt(replace(snapshot, step=9), "sh1", 0.0)


class Damaged:
    """A peer that gives something else than it has."""

    def __init__(self, node: ShadowNode, spoil: Any) -> None:
        self._peer, self._spoil = LocalPeer(node), spoil

    def status(self, group: str) -> pb.Status:
        return self._peer.status(group)

    def recovery_point(self, group: str, most_bytes: int) -> EncodedPoint:
        return self._spoil(self._peer.recovery_point(group, most_bytes))


def flipped(point: EncodedPoint) -> EncodedPoint:
    return replace(point, state=point.state[:-1] + bytes([point.state[-1] ^ 1]))


def stated(**changes: Any) -> Any:
    def spoil(point: EncodedPoint) -> EncodedPoint:
        return edited(lambda manifest: manifest.update(changes))(point)

    return spoil


def edited(edit: Any) -> Any:
    def spoil(point: EncodedPoint) -> EncodedPoint:
        manifest = json.loads(without_checksum(point.manifest_json)[0])
        edit(manifest)
        return replace(point, manifest_json=with_checksum(json.dumps(manifest)))

    return spoil


SPOILS = {
    "a flipped bit": (flipped, "SHA-256"),
    "cut short": (lambda point: replace(point, state=point.state[:-9]), "length"),
    "no manifest": (lambda point: replace(point, manifest_json=""), "manifest"),
    "another job": (stated(job="other"), "manifest.job"),
    "another group": (stated(group="dp1"), "manifest.group"),
    "too few ranks": (stated(ranks=2), "manifest.ranks"),
    "no records": (stated(records=[]), "manifest.records"),
    "epoch 0": (stated(epoch=0), "expected 1 or more"),
    "an older object": (edited(lambda m: m["objects"][0].update(step=1)), "different steps"),
    "an object unlisted": (edited(lambda m: m["objects"].pop()), "without an entry"),
    "no layout": (stated(layout={}), "layout_json"),
    "an unknown optimizer": (edited(lambda m: m["optimizer"].update(name="Nope")), "Nope"),
    "another optimizer": (edited(lambda m: m["optimizer"].update(name="SGD")), "optim"),
    "a parameter too few": (edited(lambda m: m["optimizer"]["groups"][0]["params"].pop()), "layer"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILS)
def test_what_is_not_sound_is_not_taken_and_the_next_peer_is_asked(peers: Peers, what: str) -> None:
    for _ in range(2):
        peers.train("sh0", "sh1")
    spoil, message = SPOILS[what]
    node = peers.restart(folder="new")
    sh1 = peers.nodes["sh1"]
    [resumed] = resume_from_peers(node, {"sh1": Damaged(sh1, spoil)})
    assert resumed.peer is None
    assert message in resumed.troubles[0]
    assert node.status("dp0").replica_step == 0
    assert [event for event in peers.events["sh0"] if isinstance(event, StateAdopted)] == []
    sound: dict[str, Peer] = {"sh1": LocalPeer(sh1)}
    assert resume_from_peers(node, sound)[0].step == 2


def test_a_point_is_read_as_it_was_written(peers: Peers) -> None:
    peers.train("sh1")
    given = encode_of(peers.nodes["sh1"])
    read = read_point(peers.job, peers.job.groups[0], given)
    assert encode(read) == given


def test_over_grpc(peers: Peers) -> None:
    for _ in range(3):
        peers.train("sh0", "sh1")
    node = peers.restart(folder="new")
    server = ShadowServer(peers.nodes["sh1"], "127.0.0.1:0")
    absent, present = GrpcPeer("127.0.0.1:1"), GrpcPeer(server.address)
    try:
        [resumed] = resume_from_peers(node, {"sh1": absent})
        assert resumed.peer is None
        assert "127.0.0.1:1" in resumed.troubles[0]
        with pytest.raises(ShadowError, match="longer than 100 bytes"):
            present.recovery_point("dp0", 100)
        with pytest.raises(ConnectionError, match="no group 'dp9'"):
            present.recovery_point("dp9", 1 << 30)
        [resumed] = resume_from_peers(node, {"sh1": present})
        assert (resumed.peer, resumed.step) == ("sh1", 3)
    finally:
        absent.close()
        present.close()
        server.stop()
    assert node.status("dp0").durable_step == 3
    peers.check()


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="packet sockets need root")
def test_as_a_process(peers: Peers) -> None:
    for _ in range(3):
        peers.train("sh1")
    root = peers.root
    (root / "job.yaml").write_text(yaml.safe_dump(peers.job.model_dump(mode="json")))
    server = ShadowServer(peers.nodes["sh1"], f"unix:{root}/peer")
    command = [
        sys.executable, "-m", "shadow_rx", "--job", str(root / "job.yaml"), "--shadow", "sh0", "--iface", "lo",
        "--listen", f"unix:{root}/own", "--store", str(root / "new"), "--resume", "--peer", f"sh1=unix:{root}/peer",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline() or "{}").get("event") == "ready", process.communicate()
            peer = GrpcPeer(f"unix:{root}/own")
            given = peer.recovery_point("dp0", 1 << 30)
            peer.close()
        finally:
            process.terminate()
            out, told = process.communicate(timeout=120)
            server.stop()
    assert "group dp0: step 3 was taken from shadow node sh1; steps 1 to 2 are not here" in told
    final = json.loads(out)["groups"]["dp0"]
    assert (final["replicaStep"], final["durableStep"]) == ("3", "3")
    snapshot = read_point(peers.job, peers.job.groups[0], given)
    assert (snapshot.step, as_bytes(snapshot.tensors)) == (3, peers.truth[3])
