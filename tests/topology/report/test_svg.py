from __future__ import annotations

import math
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobspec.loader import load_job
from tests.topology.report.run_results import EXAMPLE, HOSTILE, job
from tests.topology.simulation.wide_job import wide_job
from topology.report.charts import Chart, Series, render_chart
from topology.report.diagram import render_topology
from topology.report.diagram_switches import render_switches
from topology.report.svg import SVG_NAMESPACE, number, path, printable, svg, thin_out, tick_text, ticks, to_text

NS = {"s": SVG_NAMESPACE}
values = st.floats(-1e12, 1e12, allow_nan=False)


@given(values, values, st.booleans())
def test_ticks_enclose_the_range_evenly(a: float, b: float, whole: bool) -> None:
    low, high = min(a, b), max(a, b)
    found = ticks(low, high, whole=whole)
    assert 2 <= len(found) <= 14
    slack = 1e-6 * (found[1] - found[0])
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    gaps = [right - left for left, right in pairwise(found)]
    assert min(gaps) > 0
    assert max(gaps) == pytest.approx(min(gaps), rel=1e-6)
    if whole:
        assert all(tick == int(tick) for tick in found)


def test_ticks_are_round_and_labelled_alike() -> None:
    assert ticks(0, 2.3) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert ticks(0, 0) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert [tick_text(t, 0.05) for t in ticks(0, 0.2)] == ["0.00", "0.05", "0.10", "0.15", "0.20"]
    assert tick_text(12_000, 2000) == "12,000"
    assert tick_text(2e9, 1e9) == "2e+09"


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000), st.integers(8, 400))
def test_thinning_keeps_ends_peaks_and_order(column: list[float], most: int) -> None:
    points = list(enumerate(column))
    kept = thin_out(points, most)
    assert len(kept) <= max(most, 8)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert {min(v for _, v in kept), max(v for _, v in kept)} == {min(column), max(column)}
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)


@given(st.text())
def test_any_text_becomes_well_formed_and_printable(text: str) -> None:
    node = svg("text", text, svg("tspan", text), text, id=text)
    read = ElementTree.fromstring(to_text(node))
    shown = printable(text)
    assert "".join(read.itertext()) == shown * 3
    assert read.attrib["id"] == shown
    assert shown.isprintable()
    shown.encode()


def test_hostile_texts_lose_their_control_characters_only() -> None:
    shown = printable(HOSTILE)
    assert "<script>" in shown
    assert not set("\x1b\x00\ud800\u202e") & set(shown)
    assert printable("a\tb\nc") == "a b c"


def test_numbers_and_paths_are_short() -> None:
    assert [number(v) for v in (1.0, 0.125, -0.001, 100, 2.50)] == ["1", "0.12", "0", "100", "2.5"]
    assert path("M", 1, 2.5, "H", 9) == "M 1 2.5 H 9"


def chart(points: list[tuple[int, float]], **changes: object) -> ElementTree.Element:
    series = Series("loss", "c-loss", "line", tuple(points))
    fields: dict[str, object] = {
        "name": "plot",
        "title": "t",
        "description": "d",
        "y_label": "loss",
        "steps": (points[0][0], points[-1][0]) if points else (1, 5),
        "series": (series,),
        "format_value": lambda value: f"{value:.1f}",
    }
    image = render_chart(Chart(**(fields | changes)))  # type: ignore[arg-type]
    return ElementTree.fromstring(to_text(image))


def coordinates(image: ElementTree.Element) -> list[float]:
    found = []
    local = {node for defs in image.iter(f"{{{SVG_NAMESPACE}}}defs") for node in defs.iter()}
    for node in image.iter():
        if node in local or "transform" in node.attrib:
            continue
        for name in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy"):
            if name in node.attrib:
                found.append(float(node.attrib[name]))
        found += [float(word) for word in node.attrib.get("d", "").split() if word[0] in "-0123456789"]
    return found


def inside(image: ElementTree.Element) -> bool:
    width, height = (float(v) for v in image.attrib["viewBox"].split()[2:])
    return all(-1 <= v <= max(width, height) + 1 for v in coordinates(image))


def test_a_line_breaks_where_steps_are_missing() -> None:
    image = chart([(1, 1.0), (2, 2.0), (4, 3.0), (5, 1.0), (7, 2.0)], gaps=[(3, 3), (6, 6)])
    (line,) = image.findall("s:path[@class='line c-loss']", NS)
    assert line.attrib["d"].count("M") == 3
    alone = line.attrib["d"].rsplit("M", 1)[1].split()
    assert alone[:2] == alone[3:]
    assert len(image.findall("s:circle", NS)) == 5
    (boxes,) = image.findall("s:path[@class='gap']", NS)
    assert boxes.attrib["d"].count("M") == 2


def test_an_axis_reaches_as_far_as_it_is_told() -> None:
    def top(**changes: object) -> float:
        (dot,) = chart([(1, 1.0)], whole=True, **changes).findall("s:circle", NS)
        return float(dot.attrib["cy"])

    assert top() == 30
    assert top(y_reach=4) == 30 + 200 * 3 / 4


def test_hover_texts_tell_values_and_notes() -> None:
    image = chart([(1, 1.0), (2, 2.0)], notes={2: "no recovery point (overload)"})
    texts = [title.text for title in image.findall("s:g/s:rect/s:title", NS)]
    assert texts == ["step 1\nloss: 1.0", "step 2\nloss: 2.0\nstep 2: no recovery point (overload)"]


def test_a_long_run_is_thinned_out_and_keeps_its_peak() -> None:
    points = [(step, math.sin(step) + (41 if step == 7777 else 0)) for step in range(1, 20_001)]
    image = chart(points, notes=dict.fromkeys(range(1, 20_001), "n"))
    assert len(to_text(image)) < 120_000
    titles = [title.text or "" for title in image.findall("s:g/s:rect/s:title", NS)]
    assert len(titles) <= 240
    assert sum("to 40." in title for title in titles) == 1
    assert titles[0].endswith("and 77 more")
    (line,) = image.findall("s:path[@class='line c-loss dense']", NS)
    heights = [float(word) for word in line.attrib["d"].split() if word not in "ML"][1::2]
    assert min(heights) < sorted(heights)[1] - 50


@pytest.mark.parametrize("points", [[], [(1, 0.0)], [(9, -3.0)], [(1, 1e300), (2, -1e300)], [(1, 1e-9), (2, 2e-9)]])
def test_odd_values_stay_within_the_frame(points: list[tuple[int, float]]) -> None:
    image = chart(points)
    assert inside(image)
    assert ("no values" in "".join(image.itertext())) == (not points)


@pytest.mark.parametrize(
    ("ranks", "shadows"), [(2, 1), (3, 1), (4, 1), (8, 1), (8, 3), (9, 1), (16, 2), (20, 1), (64, 1)]
)
def test_the_topology_shows_every_rank_edge_and_shadow(ranks: int, shadows: int) -> None:
    image = ElementTree.fromstring(to_text(render_topology(job(ranks, shadows), "softswitch")))
    assert image.attrib["role"] == "img"
    assert len(image.findall("s:g[@class='rank']", NS)) == ranks
    assert len(image.findall("s:line[@class='link']", NS)) == ranks
    assert len(image.findall("s:path[@class='ring']", NS)) == ranks
    assert len(image.findall("s:g[@class='shadow']", NS)) == shadows
    assert len(image.findall("s:path[@class='replica']", NS)) == shadows
    texts = "\n".join(image.itertext())
    for port in range(1, ranks + shadows + 1):
        assert f"port {port}" in texts
    assert "DSCP 3" in texts
    assert "MTU 1500" in texts
    assert f"rank {ranks - 1} (r{ranks - 1}) to its successor r0" in texts


@pytest.mark.parametrize("ranks", range(2, 65))
def test_ranks_do_not_overlap_and_leave_room_for_the_replicas(ranks: int) -> None:
    image = ElementTree.fromstring(to_text(render_topology(job(ranks), "bmv2")))
    assert inside(image)
    width, height = (float(v) for v in image.attrib["viewBox"].split()[2:])
    boxes = []
    for group in image.findall("s:g[@class='rank']", NS):
        circle, box = group.find("s:circle", NS), group.find("s:rect", NS)
        if box is not None:
            x, y, w, h = (float(box.attrib[k]) for k in ("x", "y", "width", "height"))
        else:
            assert circle is not None
            cx, cy, r = (float(circle.attrib[k]) for k in ("cx", "cy", "r"))
            x, y, w, h = cx - r, cy - r, 2 * r, 2 * r
        boxes.append((x, y, x + w, y + h))
    for i, (x1, y1, x2, y2) in enumerate(boxes):
        assert x1 >= 0
        assert y1 >= 0
        assert y2 <= height
        # The replicas' path runs at half height from the middle of the ring to the right.
        middle = sum(b[0] + b[2] for b in boxes) / len(boxes) / 2
        assert x2 < middle or not y1 - 12 < height / 2 < y2 + 12
        for other in boxes[i + 1 :]:
            assert x2 <= other[0] or other[2] <= x1 or y2 <= other[1] or other[3] <= y1 or ranks > 8
            assert (x1, y1) != (other[0], other[1])
            if ranks > 8:
                distance = math.dist((x1 + x2, y1 + y2), (other[0] + other[2], other[1] + other[3])) / 2
                assert distance >= x2 - x1
    assert width < 1200


def test_two_switches_are_drawn_with_their_trunk_and_every_port() -> None:
    job = load_job(EXAMPLE.with_name("two-switches.yaml"))
    image = ElementTree.fromstring(to_text(render_switches(job, "bmv2")))
    assert inside(image)
    assert len(image.findall("s:g[@class='switch']", NS)) == 2
    assert len(image.findall("s:path[@class='trunk']", NS)) == 1
    assert len(image.findall("s:path[@class='ring']", NS)) == len(image.findall("s:g[@class='rank']", NS)) == 4
    # Replicas come over the trunk from the first switch, and down to the shadow.
    assert len(image.findall("s:path[@class='replica thin']", NS)) == 1
    assert len(image.findall("s:path[@class='replica']", NS)) == 1
    texts = "\n".join(image.itertext())
    assert "trunk: port 3 of s1, port 4 of s2" in texts
    assert "over the trunk from s1 to s2, on the way to sh0" in texts
    assert "r3 on port 2 of s2" in texts
    badges = [group.findtext("s:text", namespaces=NS) for group in image.findall("s:g[@class='port']", NS)]
    assert sorted(badge or "" for badge in badges) == ["port 1", "port 1", "port 2", "port 2", "port 3", "port 4"]


@pytest.mark.parametrize("switches", [2, 3, 5])
@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_cards_on_several_switches_do_not_overlap(switches: int, ranks: int) -> None:
    names = [f"s{i}" for i in range(switches)]
    hosts = [name for name in names for _ in range(ranks)]
    rings = [(tuple(range(g, len(hosts), 2)), (0, 1)) for g in range(2)]
    star = [(names[0], name) for name in names[1:]]
    job = wide_job(hosts, [names[-1], names[0]], rings, trunks=star)
    image = ElementTree.fromstring(to_text(render_switches(job, "softswitch")))
    assert inside(image)
    boxes = []
    for style in ("rank", "rank g1", "switch", "shadow"):
        for box in image.findall(f"s:g[@class='{style}']/s:rect", NS):
            boxes.append(tuple(float(box.attrib[k]) for k in ("x", "y", "width", "height")))
    assert len(boxes) == len(hosts) + switches + 2
    for i, (x, y, w, h) in enumerate(boxes):
        for left, top, width, height in boxes[i + 1 :]:
            assert x + w <= left or left + width <= x or y + h <= top or top + height <= y
