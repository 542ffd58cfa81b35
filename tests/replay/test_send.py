"""Captures on a real wire: a veth pair in a namespace of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from capture.errors import CaptureError
from capture.writer import PcapWriter
from checkmate.send_command import run_send, send_options_without_send
from replay.errors import ReplayError
from replay.send import CUT, TOO_LONG, Pause, SendState, send_capture
from replay.send_pace import Pace, PaceKind
from replay.send_rewrite import Rewrite
from tests.softswitch.netns import ip, run_in, why_not
from tests.switch_contract.wire import MTU, Wire

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]
MACS = {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
FRAMES = [
    bytes(Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2") / TCP(seq=i) / Raw(bytes([i]) * (20 + 7 * i)))
    for i in range(20)
]
VLAN = FRAMES[3][:12] + b"\x81\x00\x60\x2a" + FRAMES[3][12:]
ROCE = bytes(Ether(**MACS) / IP(src="10.0.0.1", dst="10.0.0.2") / UDP(dport=4791) / Raw(bytes(40)))
FAST = Pace(PaceKind.PACKETS, 1e6)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"real frames need namespaces: {reason}")
    with Wire([1]) as made:
        yield made


def saved(path: Path, frames: list[bytes], gap_ns: int = 1_000_000) -> Path:
    with PcapWriter(path) as writer:
        for number, frame in enumerate(frames):
            writer.write(10**18 + gap_ns * number, frame)
    return path


def sent(wire: Wire, path: Path, **options: object) -> SendState:
    settings: dict[str, object] = {"pace": FAST, "progress": lambda _: None, "stop": lambda: False, **options}
    return run_in(wire.namespace, lambda: send_capture(path, wire.interfaces[1], **settings))  # type: ignore[arg-type]


def arrived(wire: Wire, count: int) -> list[bytes]:
    """Return `count` frames, and see that no more come after them."""
    frames = [wire.receive(1) for _ in range(count)]
    mark = b"\x02MARK!" * 10
    wire_mark = saved_mark(wire, mark)
    assert wire.receive(1) == wire_mark
    return frames


def saved_mark(wire: Wire, mark: bytes) -> bytes:
    def send() -> None:
        import socket

        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as raw:
            raw.bind((wire.interfaces[1], 0))
            raw.send(mark)

    run_in(wire.namespace, send)
    return mark


def test_frames_leave_as_they_were_captured(wire: Wire, tmp_path: Path) -> None:
    frames = [*FRAMES, VLAN, FRAMES[0][:20], FRAMES[0] + bytes(MTU + 14 - len(FRAMES[0]))]
    state = sent(wire, saved(tmp_path / "x.pcap", frames), pace=Pace())
    assert arrived(wire, len(frames)) == frames
    assert (state.packets, state.bytes, state.round) == (len(frames), sum(map(len, frames)), 1)
    assert not state.not_sent
    assert state.elapsed_ns >= (len(frames) - 1) * 1_000_000
    assert state.file_bytes == state.file_size == (tmp_path / "x.pcap").stat().st_size


@pytest.mark.parametrize(
    ("pace", "least_s"),
    [
        (Pace(PaceKind.PACKETS, 200), 19 / 200),
        (Pace(PaceKind.RECORDED, 0.2), 19 * 0.001 / 0.2),
        (Pace(PaceKind.BITS, 8e4), sum(map(len, FRAMES[:-1])) / 1e4),
    ],
    ids=str,
)
def test_a_pace_is_not_exceeded(wire: Wire, tmp_path: Path, pace: Pace, least_s: float) -> None:
    state = sent(wire, saved(tmp_path / "x.pcap", FRAMES), pace=pace)
    assert arrived(wire, len(FRAMES)) == FRAMES
    assert state.elapsed_ns >= least_s * 1e9


def test_what_cannot_be_sent_is_counted(wire: Wire, tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    with PcapWriter(path) as writer:
        writer.write(0, FRAMES[1])
        writer.write(1, FRAMES[2][:30], original_length=len(FRAMES[2]))
        writer.write(2, FRAMES[3] + bytes(MTU))
        writer.write(3, FRAMES[4])
    state = sent(wire, path)
    assert arrived(wire, 2) == [FRAMES[1], FRAMES[4]]
    assert state.not_sent == {CUT: 1, TOO_LONG: 1}
    assert state.packets == 2


def test_it_is_repeated_with_other_addresses(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", FRAMES)
    rewrite = Rewrite.of([f"{MACS['dst']}=06:00:00:00:00:09"], ["10.0.0.1=10.0.9.1"])
    state = sent(wire, path, loop=3, rewrite=rewrite)
    assert arrived(wire, 3 * len(FRAMES)) == [rewrite.apply(frame) for frame in FRAMES] * 3
    assert (state.round, state.packets) == (3, 3 * len(FRAMES))


def test_endless_sending_ends_when_told(wire: Wire, tmp_path: Path) -> None:
    asked = iter(range(10**9))
    state = sent(wire, saved(tmp_path / "x.pcap", FRAMES), loop=0, stop=lambda: next(asked) > 300)
    assert state.packets > 5 * len(FRAMES)
    assert arrived(wire, state.packets)[:25] == (FRAMES * 2)[:25]
    # Nothing to send is no reason to spin.
    assert sent(wire, saved(tmp_path / "empty.pcap", []), loop=0).packets == 0


def test_addresses_of_rocev2_are_refused_before_anything_is_sent(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", [*FRAMES, ROCE])
    with pytest.raises(ReplayError, match=r"packet 21: it is RoCEv2, whose iCRC covers .* use --rewrite-mac"):
        sent(wire, path, rewrite=Rewrite.of([], ["10.0.0.2=10.0.0.3"]))
    assert arrived(wire, 0) == []


def test_damage_is_told_when_it_is_come_to(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", FRAMES)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CaptureError):
        sent(wire, path)
    assert arrived(wire, len(FRAMES) - 1) == FRAMES[:-1]


def test_a_pause_is_no_delay(wire: Wire, tmp_path: Path) -> None:
    pause, begin = Pause(paused=True), time.monotonic()
    seen: list[tuple[int, bool]] = []

    def progress(state: SendState) -> None:
        seen.append((state.packets, state.paused))
        pause.paused = len(seen) < 5

    state = sent(wire, saved(tmp_path / "x.pcap", FRAMES), progress=progress, pause=pause, pace=Pace())
    waited = time.monotonic() - begin - state.elapsed_ns / 1e9
    assert seen[:5] == [(0, True)] * 5
    assert not state.paused
    assert waited > 0.15
    assert arrived(wire, len(FRAMES)) == FRAMES


def test_a_long_delay_is_followed_by_no_burst(wire: Wire, tmp_path: Path) -> None:
    asked = iter(range(10**9))

    def stall() -> bool:
        if next(asked) == 20:
            time.sleep(0.3)
        return False

    state = sent(wire, saved(tmp_path / "x.pcap", FRAMES, gap_ns=10_000_000), pace=Pace(), stop=stall)
    assert arrived(wire, len(FRAMES)) == FRAMES
    # 19 gaps of 10 ms and the delay, of which at most the 10 ms in which it began and 20 ms are caught up with.
    assert state.elapsed_ns >= 190e6 + 300e6 - 10e6 - 20e6
    assert state.late_ns >= 280e6


def test_interfaces_that_cannot_send(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", FRAMES)
    with pytest.raises(ReplayError, match="interface nowhere: there is no such interface; see: ip link"):
        send_capture(path, "nowhere", pace=FAST, progress=lambda _: None, stop=lambda: False)
    interface = wire.interfaces[1]
    ip("-n", wire.namespace, "link", "set", interface, "down")
    try:
        with pytest.raises(ReplayError, match=rf"interface {interface}: cannot send: .*ip link set {interface} up"):
            sent(wire, path)
    finally:
        ip("-n", wire.namespace, "link", "set", interface, "up")


def test_a_pipe_is_read_once_only(wire: Wire, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(ReplayError, match="has to be read more than once; save it to a file first"):
        sent(wire, fifo, loop=2)


def command(wire: Wire, path: Path, **options: object) -> list[str]:
    program = (
        "import sys; from pathlib import Path; from checkmate.send_command import run_send; "
        f"sys.exit(run_send([Path({str(path)!r})], {wire.interfaces[1]!r}, **{options!r}))"
    )
    return ["ip", "netns", "exec", wire.namespace, sys.executable, "-c", program]


def test_the_command_tells_programs_what_was_sent(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", [*FRAMES, FRAMES[0] + bytes(MTU)])
    done = subprocess.run(
        command(wire, path, rate=1e5, loop=2, as_json=True), cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert (document["packets"], document["rounds"], document["error"]) == (40, 2, None)
    assert document["not_sent"] == {TOO_LONG: 2}
    assert arrived(wire, 40) == FRAMES * 2


def test_signals_pause_and_end_it(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", FRAMES, gap_ns=20_000_000)
    process = subprocess.Popen(
        command(wire, path, loop=0, as_json=True), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert wire.receive(1) == FRAMES[0]
        process.send_signal(signal.SIGUSR1)
        until_silence(wire)
        process.send_signal(signal.SIGUSR1)
        assert wire.receive(1) in FRAMES
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "interrupted" in errors
    document = json.loads(output)
    # Five seconds without a frame are in no figure.
    assert document["seconds"] < 4
    assert document["largest_delay_seconds"] < 4
    drain(wire)


def until_silence(wire: Wire) -> None:
    while True:
        try:
            wire.receive(1)
        except LookupError:
            return


def drain(wire: Wire) -> None:
    saved_mark(wire, b"\x02DRAIN" * 10)
    while wire.receive(1) != b"\x02DRAIN" * 10:
        pass


def test_the_space_key_pauses_and_the_shells_stop_is_no_delay(wire: Wire, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pcap", FRAMES, gap_ns=20_000_000)
    words = command(wire, path, loop=0)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.environ["TERM"] = "xterm"
        os.execvp(words[0], words)
    screen = Screen(terminal)
    try:
        screen.wait_for("packets")
        os.write(terminal, b" ")
        screen.wait_for("paused (space continues)")
        os.write(terminal, b" ")
        drain(wire)
        assert wire.receive(1) in FRAMES
        os.kill(pid, signal.SIGTSTP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        drain(wire)
        time.sleep(1.5)  # the time that must not count
        os.kill(pid, signal.SIGCONT)
        assert wire.receive(1) in FRAMES
        os.write(terminal, b"\x03")
        screen.wait_for("largest delay")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    delay_ms = float(screen.text.split("largest delay ")[1].split(" ms")[0])
    assert delay_ms < 1400
    drain(wire)


class Screen:
    """What a program has written to its terminal."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self.text = ""

    def wait_for(self, words: str, timeout_s: float = 30) -> None:
        end = time.monotonic() + timeout_s
        while words not in self.text:
            ready = select.select([self._terminal], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"{words!r} is not in {self.text!r}"
            try:
                self.text += os.read(self._terminal, 4096).decode()
            except OSError:
                raise AssertionError(f"the program ended: {self.text!r}") from None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 5.0, "mbps": 1.0}, "--rate and --mbps: "),
        ({"speed": 0.0}, "--speed: 0 times the recorded speed: expected a number above 0"),
        ({"rewrite_mac": ["x"]}, "--rewrite-mac x: is no pair of addresses"),
        ({}, "interface nowhere: there is no such interface"),
    ],
)
def test_wrong_options_end_with_2(
    options: dict[str, object], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "x.pcap", FRAMES)
    assert run_send([path], "nowhere", **options) == 2  # type: ignore[arg-type]
    assert words in capsys.readouterr().err
    assert run_send([path, path], "nowhere") == 2
    assert "2 captures are given; send one" in capsys.readouterr().err


def test_options_that_need_send() -> None:
    none: dict[str, object] = dict.fromkeys(("rate", "speed", "mbps", "loop", "rewrite_mac", "rewrite_ip"))
    assert send_options_without_send(**none) is None  # type: ignore[arg-type]
    assert send_options_without_send(**{**none, "loop": 2, "rewrite_ip": ["x"]}) == "--loop"  # type: ignore[arg-type]
