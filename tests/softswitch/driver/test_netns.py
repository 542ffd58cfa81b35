"""Real frames through AF_PACKET: the switch runs as a process between hosts in namespaces of their own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from finsy.proto import p4r
from scapy.utils import RawPcapReader

from tests.softswitch.netns import Star, ip, run_in, why_not
from tests.softswitch.p4rt_client import (
    CPU_PORT,
    IDS,
    Call,
    Controller,
    dmac,
    ether,
    exact,
    group,
    load_config,
    mac,
)
from tests.softswitch.switch_process import ROOT, SwitchProcess, command, run_to_end

MISSING = why_not()
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(MISSING is not None, reason=f"real frames need namespaces: {MISSING}"),
]


@contextmanager
def running(star: Star, directory: Path, *options: str) -> Iterator[tuple[SwitchProcess, Controller]]:
    """The switch with all hosts attached, and a primary that has pushed the sample program."""
    address = f"unix:{directory}/p4rt.sock"
    interfaces = [part for number, name in star.interfaces.items() for part in ("-i", f"{number}@{name}")]
    server = ["--grpc-server-addr", address, "--cpu-port", str(CPU_PORT)]
    arguments = ["--no-p4", "--device-id", "1", *interfaces, *options, "--", *server]
    with SwitchProcess(*arguments, namespace=star.switch) as process:
        assert process.ready == {
            "event": "ready",
            "device_id": 1,
            "grpc": address,
            "ports": {str(number): name for number, name in star.interfaces.items()},
        }
        with Controller(address) as controller:
            assert controller.arbitrate(1) == 0
            controller.set_pipeline(Call.VERIFY_AND_COMMIT, load_config())
            yield process, controller


def flood_entry(last: int, group_id: int) -> p4r.Entity:
    action = IDS.action("flood", bytes([group_id]))
    return p4r.Entity(table_entry=IDS.entry("dmac", exact(1, mac(last)), action=action))


def captured(path: Path) -> list[bytes]:
    return [data for data, _ in RawPcapReader(str(path))]


@pytest.fixture
def star() -> Iterator[Star]:
    with Star(3) as star:
        yield star


def test_frames_of_every_size_pass_bit_for_bit_in_order(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path) as (_, controller):
        controller.insert(dmac(1, 1), dmac(2, 2))
        one, two = star.hosts[1], star.hosts[2]
        frames = [ether(mac(2), mac(1), bytes([n % 256]) * n) for n in (0, 1, 46, 47, 500, 1499, 1500)] * 20
        back = [ether(mac(1), mac(2), frame[14:]) for frame in frames]
        for there, reply in zip(frames, back, strict=True):
            one.send(there)
            two.send(reply)
        assert two.receive_many(len(frames)) == frames
        assert one.receive_many(len(back)) == back
        assert star.hosts[3].receive(0) is None


def test_jumbo_frames_pass_when_the_interfaces_allow_them(tmp_path: Path) -> None:
    with Star(2, mtu=9000) as star, running(star, tmp_path) as (_, controller):
        controller.insert(dmac(2, 2))
        frame = ether(mac(2), mac(1), bytes(range(250)) * 36)
        assert len(frame) == 9014
        star.hosts[1].send(frame)
        assert star.hosts[2].receive() == frame


def test_multicast_reaches_each_port_once(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path) as (_, controller):
        controller.insert(flood_entry(7, 1), group(1, (1, 0), (2, 0), (3, 0)))
        frame = ether(mac(7), mac(1))
        star.hosts[1].send(frame)
        for host in star.hosts.values():
            assert host.receive() == frame
        assert all(host.receive(0) is None for host in star.hosts.values())


@pytest.mark.parametrize("tag", [b"\x81\x00\x61\x23", b"\x88\xa8\x00\x05", b"\x88\xa8\x00\x05\x81\x00\xef\xff"])
def test_vlan_tags_that_the_kernel_strips_are_put_back(star: Star, tmp_path: Path, tag: bytes) -> None:
    plain = ether(mac(2), mac(1))
    tagged = plain[:12] + tag + plain[12:]
    with running(star, tmp_path, f"--pcap={tmp_path}") as (process, controller):
        controller.insert(dmac(2, 2))
        star.hosts[1].send(tagged)
        star.hosts[1].send(plain)
        # The receiver's kernel strips the outer tag before this socket sees the frame, as the switch's did.
        assert star.hosts[2].receive() in (tagged, tagged[:12] + tagged[16:])
        assert star.hosts[2].receive() == plain
        [counter] = controller.read(
            p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=IDS.entry("dmac", exact(1, mac(2)))))
        )
        assert counter.direct_counter_entry.data.byte_count == len(tagged) + len(plain)
        assert process.end() == 0
    assert captured(tmp_path / "s1_in.pcap") == captured(tmp_path / "s2_out.pcap") == [tagged, plain]


def test_packet_out_packet_in_and_digest_by_timer(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path) as (_, controller):
        to_cpu = IDS.action("to_cpu", b"\x03")
        settings = p4r.DigestEntry(
            digest_id=IDS("digest", "learn_t"), config={"max_list_size": 100, "max_timeout_ns": 20_000_000}
        )
        controller.insert(
            p4r.Entity(table_entry=IDS.entry("dmac", exact(1, mac(7)), action=to_cpu)),
            p4r.Entity(digest_entry=settings),
        )
        frame = ether(mac(7), mac(1))
        out = p4r.PacketOut(payload=frame, metadata=[p4r.PacketMetadata(metadata_id=1, value=b"\x03")])
        controller.send(packet=out)
        assert star.hosts[3].receive() == frame
        star.hosts[2].send(frame)
        packet = controller.receive("packet")
        assert (packet.payload, packet.metadata[0].value) == (frame, b"\x02")
        digest = controller.receive("digest")
        assert len(digest.data) == 1
        assert digest.timestamp > 1_600_000_000 * 10**9


def test_captures_hold_what_passed_and_the_end_is_clean(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path, f"--pcap={tmp_path}", "--log-console") as (process, controller):
        controller.insert(dmac(2, 2))
        frames = [ether(mac(2), mac(1), bytes([n]) * 60) for n in range(50)]
        for frame in frames:
            star.hosts[1].send(frame)
        star.hosts[1].send(ether(mac(66), mac(1)))
        assert star.hosts[2].receive_many(len(frames)) == frames
        assert process.end() == 0
    assert captured(tmp_path / "s1_in.pcap") == [*frames, ether(mac(66), mac(1))]
    assert captured(tmp_path / "s2_out.pcap") == frames
    assert captured(tmp_path / "s1_out.pcap") == captured(tmp_path / "s2_in.pcap") == []
    assert sorted(path.name for path in tmp_path.glob("*.pcap")) == sorted(
        f"s{n}_{direction}.pcap" for n in (1, 2, 3) for direction in ("in", "out")
    )
    assert "port 1 (s1): 51 frames received, 0 sent" in process.said()


def test_captures_can_be_read_while_the_switch_is_idle(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path, f"--pcap={tmp_path}") as (_, controller):
        controller.insert(dmac(2, 2))
        frame = ether(mac(2), mac(1))
        star.hosts[1].send(frame)
        assert star.hosts[2].receive() == frame
        controller.read(dmac(2, 2))
        while captured(tmp_path / "s2_out.pcap") != [frame]:
            pass


def test_interface_that_vanishes_is_reported_and_the_rest_goes_on(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path) as (process, controller):
        controller.insert(dmac(1, 1), dmac(2, 2), dmac(3, 3))
        ip("-n", star.switch, "link", "delete", "s3")
        assert process.wait_for_text("port 3 (s3): the interface is gone")
        star.hosts[1].send(ether(mac(3), mac(1)))
        frame = ether(mac(2), mac(1))
        star.hosts[1].send(frame)
        assert star.hosts[2].receive() == frame
        assert process.end() == 0


def test_interface_that_goes_down_and_up_again_works_again(star: Star, tmp_path: Path) -> None:
    with running(star, tmp_path) as (process, controller):
        controller.insert(dmac(2, 2), dmac(1, 1))
        frame = ether(mac(2), mac(1))
        ip("-n", star.switch, "link", "set", "s2", "down")
        assert process.wait_for_text("port 2 (s2)")
        star.hosts[1].send(frame)
        assert process.wait_for_text("was not sent: the interface is down")
        ip("-n", star.switch, "link", "set", "s2", "up")
        star.hosts[1].send(frame)
        assert star.hosts[2].receive() == frame
        back = ether(mac(1), mac(2))
        star.hosts[2].send(back)
        assert star.hosts[1].receive() == back


def test_frame_longer_than_the_mtu_is_reported_with_the_fix(tmp_path: Path) -> None:
    with Star(2, mtu=3000) as star:
        ip("-n", star.switch, "link", "set", "s2", "mtu", "1500")
        with running(star, tmp_path) as (process, controller):
            controller.insert(dmac(2, 2))
            star.hosts[1].send(ether(mac(2), mac(1), b"x" * 2000))
            assert process.wait_for_text("longer than the interface's MTU")
            frame = ether(mac(2), mac(1), b"x" * 1500)
            star.hosts[1].send(frame)
            assert star.hosts[2].receive() == frame


def transfer(star: Star, size: int, timeout_s: float) -> int:
    """Send `size` bytes by kernel TCP from host 1 to host 2; return how many arrived."""

    def listen() -> socket.socket:
        listener = socket.create_server(("10.9.0.2", 7000))
        listener.settimeout(timeout_s)
        return listener

    def dial() -> socket.socket:
        return socket.create_connection(("10.9.0.2", 7000), timeout_s)

    received = 0
    with run_in(star.hosts[2].namespace, listen) as listener:

        def sink() -> None:
            nonlocal received
            try:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(timeout_s)
                    while data := connection.recv(65536):
                        received += len(data)
            except TimeoutError:
                pass

        thread = threading.Thread(target=sink)
        thread.start()
        try:
            with run_in(star.hosts[1].namespace, dial) as connection:
                connection.sendall(b"z" * size)
        except TimeoutError:
            pass
        thread.join()
    return received


@pytest.mark.skipif(shutil.which("ethtool") is None, reason="ethtool is not installed")
def test_kernel_tcp_needs_offloads_off_and_the_switch_says_so(tmp_path: Path) -> None:
    with Star(2) as star:
        for number, host in star.hosts.items():
            ip("-n", host.namespace, "link", "set", "eth0", "address", mac(number).hex(":"))
            ip("-n", host.namespace, "address", "add", f"10.9.0.{number}/24", "dev", "eth0")
            peer = 3 - number
            neighbour = (f"10.9.0.{peer}", "lladdr", mac(peer).hex(":"), "dev", "eth0")
            ip("-n", host.namespace, "neighbour", "add", *neighbour)
        with running(star, tmp_path) as (process, controller):
            controller.insert(dmac(1, 1), dmac(2, 2))
            assert transfer(star, 1000, timeout_s=0.5) == 0
            assert "checksum offload" in process.said()
            for host in star.hosts.values():
                off = [word for name in ("tx", "rx", "sg", "tso", "gso", "gro") for word in (name, "off")]
                tool = ["ip", "netns", "exec", host.namespace, "ethtool", "-K", "eth0", *off]
                subprocess.run(tool, check=True, capture_output=True, timeout=30)
            assert transfer(star, 2_000_000, timeout_s=10) == 2_000_000


def test_unknown_interface_fails_loudly() -> None:
    result = run_to_end("--no-p4", "-i", "1@nowhere", "--", "--grpc-server-addr", "127.0.0.1:0")
    assert (result.returncode, result.stdout) == (1, "")
    assert "port 1 (nowhere): there is no such interface" in result.stderr


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_missing_rights_fail_loudly() -> None:
    switch = command("--no-p4", "-i", "1@lo", "--", "--grpc-server-addr", "127.0.0.1:0")
    unprivileged = ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-net_raw", *switch]
    result = subprocess.run(unprivileged, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert (result.returncode, result.stdout) == (1, "")
    assert "port 1 (lo): raw sockets are not allowed; run as root or with CAP_NET_RAW" in result.stderr
