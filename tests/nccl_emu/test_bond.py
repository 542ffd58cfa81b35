"""Active-backup bonding of interfaces, on veth pairs in a network namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_emu.__main__ import parse_options
from tests.nccl_emu.tcp.kernel_net import missing

ROOT = Path(__file__).parents[2]
needs_namespaces = pytest.mark.skipif(missing() is not None, reason=f"network namespaces: {missing()}")
# Runs in the namespace: does what standard input says, and answers what it sees; `far` sockets are the peers.
_SCRIPT = """
import json, select, socket, sys
from nccl_emu.net.bond import Bond
from nccl_emu.errors import LinkError
bond = Bond(sys.argv[1].split(","))
far = {}
for name in ("a", "b"):
    far[name] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    far[name].bind(("far-" + name, 3))
    far[name].settimeout(0.3)
def arrives(frame):
    found = []
    for name, peer in far.items():
        try:
            while peer.recv(100) != frame:
                pass
            found.append(name)
        except (TimeoutError, OSError):
            pass
    return found
def frame(number):
    return bytes.fromhex("020000000001020000000002" + "88b5") + bytes([number]) * 60
print("{}", flush=True)
for line in sys.stdin:
    words = line.split()
    answer = {}
    try:
        if words[0] == "send":
            data = frame(int(words[1])) * int(words[2])
            bond.send([data])
            answer["arrives"] = arrives(data[:100])
        elif words[0] == "notice":
            # A change comes in several notices: the peer's state, then the carrier.
            while bond.active != words[1] and select.select(bond.readers(), bond.writers(), [], 5)[0]:
                bond.receive()
        elif words[0] == "take":
            far[words[1]].send(frame(int(words[2])))
            select.select(bond.readers(), [], [], 5)
            answer["taken"] = frame(int(words[2])) in bond.receive()
    except LinkError as error:
        answer["error"] = str(error)
    print(json.dumps({"active": bond.active, **answer}), flush=True)
"""


class Inside:
    """The script in a namespace of its own, with veth pairs near-a - far-a and near-b - far-b."""

    def __init__(self, interfaces: str) -> None:
        self.namespace = f"ckbond{os.getpid()}"
        self.ip("netns", "add", self.namespace)
        for name in ("a", "b"):
            self.link("add", f"near-{name}", "type", "veth", "peer", "name", f"far-{name}")
            for end in ("near", "far"):
                self.link("set", f"{end}-{name}", "up")
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", _SCRIPT, interfaces]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "{}\n"

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def link(self, *words: str) -> None:
        self.ip("-n", self.namespace, "link", *words)

    def ask(self, *words: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        self.process.communicate(timeout=10)
        self.ip("netns", "del", self.namespace)


@pytest.fixture(params=["near-a,near-b"])
def inside(request: pytest.FixtureRequest) -> Iterator[Inside]:
    found = Inside(request.param)
    yield found
    found.close()


@pytest.mark.netns
@needs_namespaces
def test_frames_leave_by_the_first_interface_with_a_carrier(inside: Inside) -> None:
    assert inside.ask("send", 1, 1) == {"active": "near-a", "arrives": ["a"]}
    assert inside.ask("take", "b", 2)["taken"], "frames are taken from the backup too"
    inside.link("set", "far-a", "down")
    assert inside.ask("notice", "near-b") == {"active": "near-b"}
    assert inside.ask("send", 3, 1) == {"active": "near-b", "arrives": ["b"]}
    assert inside.ask("take", "b", 4) == {"active": "near-b", "taken": True}
    inside.link("set", "far-a", "up")
    assert inside.ask("notice", "near-a") == {"active": "near-a"}
    assert inside.ask("send", 5, 1) == {"active": "near-a", "arrives": ["a"]}


@pytest.mark.netns
@needs_namespaces
def test_an_interface_that_goes_down_or_away_is_done_without(inside: Inside) -> None:
    inside.link("set", "near-a", "down")
    assert inside.ask("send", 1, 1)["active"] == "near-b", "the error of the first tells"
    assert inside.ask("send", 2, 1) == {"active": "near-b", "arrives": ["b"]}
    inside.link("del", "near-a")
    assert inside.ask("send", 3, 1)["arrives"] == ["b"]
    inside.link("set", "far-b", "down")
    assert inside.ask("send", 4, 1) == {"active": "near-b", "arrives": []}, "without any carrier it waits for one"
    inside.link("set", "far-b", "up")
    # The kernel takes a moment to put a carrier that has come back to use.
    assert any(inside.ask("send", number, 1)["arrives"] == ["b"] for number in range(5, 25))


@pytest.mark.netns
@needs_namespaces
def test_a_frame_that_is_too_long_is_an_error_also_with_a_backup(inside: Inside) -> None:
    assert "larger than the MTU" in inside.ask("send", 1, 30)["error"]


@pytest.mark.netns
@needs_namespaces
@pytest.mark.parametrize("inside", ["near-a"], indirect=True)
def test_the_only_interface_fails_as_it_is(inside: Inside) -> None:
    assert inside.ask("send", 1, 1)["arrives"] == ["a"]
    inside.link("set", "near-a", "down")
    assert "near-a does not send" in inside.ask("send", 2, 1)["error"]


@pytest.mark.parametrize("text", ["", "a,", "a,a"])
def test_names_that_cannot_be_meant_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(["--iface", text, "--job", "j", "--group", "g", "--rank", "0", "--side-channel", "s",
                       "--iterations", "1", "--out", "o"])  # fmt: skip
    assert "expected names of interfaces" in capsys.readouterr().err
