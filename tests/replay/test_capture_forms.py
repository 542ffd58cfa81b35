"""One run as other tools and network cards write it: the same steps, the same gradients, in replay and in inspect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial as bound
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capture.model import Packet
from capture.reader import open_capture
from checkmate.cli import app
from replay.errors import ReplayError
from replay.inspect import inspect_capture
from replay.run import ReplayOptions, replay
from rocev2.encode import Traffic, encode, to_packets
from rocev2.report import decode
from tests.gloo.encoder import Traffic as GlooTraffic
from tests.gloo.encoder import make
from tests.replay.capture_forms import (
    LINKS,
    Change,
    Form,
    as_is,
    joined,
    partial,
    relinked,
    tagged,
    tagged_anyhow,
    trailer,
    without_length,
    write_pcap,
    write_pcapng,
)
from tests.replay.conftest import SHADOW, Run, packets_of

PORT = ("s1-eth1_in", "s1-eth1_out")
"""Both directions of a rank: what a capture on its host holds."""
Write = Callable[[Path, Sequence[Form]], Path]
Steps = list[tuple[object, ...]]


def replayed(run: Run, paths: Sequence[Path]) -> tuple[Steps, list[str]]:
    report = replay(paths, ReplayOptions(run.job, (run.log,)), lambda *_: None)
    assert report.complete
    steps = [
        (step.epoch, step.step, step.sha256, step.parameter_digest, step.state_sha256, step.applied)
        for step in report.steps
    ]
    return steps, list(report.oddities)


def seen(path: Path, *, whole: bool) -> list[dict[str, Any]]:
    """What inspect tells of each direction; `whole`: of its packets, too."""
    directions = [direction.as_dict() for direction in inspect_capture(path).tcp]
    for direction in directions:
        if not whole:
            del direction["packets"]
    return sorted(directions, key=lambda direction: (direction["source"], direction["destination"]))


@pytest.fixture(scope="module")
def plain(run: Run) -> Steps:
    steps, oddities = replayed(run, [run.capture(SHADOW)])
    assert not oddities
    assert steps == replayed(run, [run.capture(name) for name in PORT])[0]
    return steps


@pytest.mark.parametrize(
    ("change", "write", "oddity"),
    [
        *((relinked(link), write_pcap, None) for link in (113, 276, 101, 12, 228, 0)),
        (lambda packet: relinked(LINKS[packet.number % len(LINKS)])(packet), write_pcapng, None),
        (tagged(0x88A8, 0x8100), write_pcap, None),
        (tagged_anyhow, write_pcapng, None),
        (trailer, write_pcap, "more bytes captured"),
        (trailer, bound(write_pcapng, order=">"), "more bytes captured"),
        (as_is, bound(write_pcap, shift=1000), "time stamps"),
        (as_is, bound(write_pcap, order=">", nanoseconds=True), None),
        (partial, write_pcap, "unfinished checksums"),
        (partial, write_pcapng, "unfinished checksums"),
        (without_length, write_pcap, None),
        (without_length, write_pcapng, None),
    ],
    ids=[
        "sll", "sll2", "raw", "raw-12", "ipv4", "null", "ng-links", "802.1ad", "ng-tags", "trailer", "ng-trailer",
        "fractions", "nanoseconds", "partial", "ng-partial", "no-length", "ng-no-length",
    ],
)  # fmt: skip
def test_the_same_run(run: Run, plain: Steps, tmp_path: Path, change: Change, write: Write, oddity: str | None) -> None:
    path = write(tmp_path / "other.pcap", [change(packet) for packet in packets_of(run.capture(SHADOW))])
    steps, oddities = replayed(run, [path])
    assert steps == plain
    assert [oddity in name for name in oddities] == ([] if oddity is None else [True])
    assert seen(path, whole=True) == seen(run.capture(SHADOW), whole=True)


@pytest.mark.parametrize("length", [True, False], ids=["gso", "tso"])
@pytest.mark.parametrize("write", [write_pcap, write_pcapng])
def test_the_same_run_on_a_host_whose_card_cuts_segments(
    run: Run, plain: Steps, tmp_path: Path, write: Write, length: bool
) -> None:
    paths = []
    for name in PORT:
        packets = packets_of(run.capture(name))
        forms = list(joined(packets, 60_000, length=length))
        assert len(forms) < len(packets)
        assert max(len(form.data) for form in forms) > 4000
        paths.append(write(tmp_path / f"{name}.pcap", forms))
        assert seen(paths[-1], whole=False) == seen(run.capture(name), whole=False)
    steps, oddities = replayed(run, paths)
    assert steps == plain
    assert len(oddities) == 1
    assert "unfinished checksums" in oddities[0]


def command(*words: object) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["replay", *map(str, words), "--json"])
    assert done.exit_code in (0, 1), done.stderr
    return done.exit_code, json.loads(done.stdout)


def test_the_option_for_unfinished_checksums_changes_nothing_where_frames_have_their_own(
    run: Run, plain: Steps, tmp_path: Path
) -> None:
    path = write_pcap(tmp_path / "host.pcap", list(joined(packets_of(run.capture(SHADOW)), 60_000, length=True)))
    for file in (run.log, run.folder / "job.yaml"):
        shutil.copy(file, tmp_path)
    for options in ([], ["--unfinished-checksums"]):
        code, found = command(path, *options)
        assert code == 0
        assert [step["sha256"] for step in found["steps"]] == [step[2] for step in plain]


def test_gloo_takes_unfinished_checksums_when_asked(tmp_path: Path) -> None:
    """Its messages have no checksums of their own."""
    made = make(GlooTraffic())
    captures = []
    for name in ("plain", "host"):
        paths = []
        for rank in range(made.traffic.ranks):
            packets = [
                Packet(number, made.sent.index(packet) * 1000, packet.data, len(packet.data), 0, 1, 0)
                for number, packet in enumerate(made.capture(rank), 1)
            ]
            forms = [as_is(p) for p in packets] if name == "plain" else list(joined(packets, 60_000, length=True))
            paths.append(write_pcap(tmp_path / f"{name}{rank}.pcap", forms))
        captures.append(paths)
    code, plain = command(*captures[0])
    assert code == 0
    code, without = command(*captures[1])
    assert code == 1
    assert any("--unfinished-checksums" in problem for problem in without["problems"])
    code, found = command(*captures[1], "--unfinished-checksums")
    assert code == 0
    assert found["gloo"] == plain["gloo"]


@pytest.mark.parametrize("ipv6", [False, True])
def test_the_same_all_reduces(tmp_path: Path, ipv6: bool) -> None:
    """RoCEv2 as other tools write it."""
    made = encode(Traffic(buckets=(1500, 34), ipv6=ipv6))
    packets = to_packets(made.packets)
    raw = 229 if ipv6 else 228
    changes: list[Change] = [relinked(link) for link in (*LINKS, raw)]
    files = [write_pcap(tmp_path / f"{n}.pcap", [c(p) for p in packets]) for n, c in enumerate(changes)]
    several = [*LINKS, raw]
    mixed: list[Change] = [lambda p: relinked(several[p.number % len(several)])(p), tagged_anyhow, trailer]
    files += [write_pcapng(tmp_path / f"{n}.pcapng", [c(p) for p in packets]) for n, c in enumerate(mixed)]
    for file in files:
        with open_capture(file) as reader:
            found = decode(reader.batches(), use_p2p=False, dtype="float32", file="x", bucket_elements=(1500, 34))
        assert [item.tensor for item in found.all_reduces] == made.tensors, file.name
        inspected = inspect_capture(file).rocev2
        assert inspected.rocev2_packets == len(packets)
        assert all(item.complete for item in inspected.all_reduces)


def test_a_damaged_payload_is_found_though_checksums_are_not_finished(run: Run, tmp_path: Path) -> None:
    packets = packets_of(run.capture(SHADOW))
    victim = max(packets, key=lambda packet: len(packet.data))

    def damaged(packet: Packet) -> Form:
        form = partial(packet)
        return replace(form, data=form.data[:-1] + bytes([form.data[-1] ^ 1])) if packet is victim else form

    path = write_pcap(tmp_path / "damaged.pcap", [damaged(packet) for packet in packets])
    report = replay([path], ReplayOptions(run.job, (run.log,)), lambda *_: None)
    assert not report.complete
    assert sum(not step.complete for step in report.steps) == 1


def test_a_link_type_that_is_not_decoded_is_named_with_what_to_do(run: Run, tmp_path: Path) -> None:
    forms = [replace(as_is(packet), link=127) for packet in packets_of(run.capture(SHADOW))]
    path = write_pcap(tmp_path / "radio.pcap", forms)
    with pytest.raises(ReplayError, match=r"127 .radiotap.*Ethernet interface"):
        replay([path], ReplayOptions(run.job), lambda *_: None)
