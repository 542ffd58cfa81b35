from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import yaml

from checkmate_common.recovery.reasons import GapReason
from jobspec.loader import load_job
from jobspec.model import Job
from tests.topology.report.pages import Node, read_page, svg_images
from tests.topology.report.run_results import (
    EXAMPLE,
    HOSTILE,
    all_good,
    hostile,
    iteration,
    job,
    long_run,
    lost,
    lost_step,
    mismatch,
    no_restart,
    several,
    with_row,
    with_steps,
)
from topology.report.meanings import GAP_MEANING, gap_meaning
from topology.report.page import TEMPLATES, render_report, write_report
from topology.report.svg import SVG_NAMESPACE, printable
from topology.results import RunResult

RUNS = {
    "good": all_good(),
    "two ranks": all_good(ranks=2),
    "eight ranks": all_good(ranks=8),
    "sixteen ranks": all_good(ranks=16),
    "three shadows": replace(all_good(), job=job(4, 3)),
    "two groups, two shadows": several(),
    "seven groups": several(groups=7, shadows=1),
    "two switches": replace(all_good(), job=load_job(EXAMPLE.with_name("two-switches.yaml"))),
    "lost": lost_step(),
    "mismatch": mismatch(),
    "no restart": no_restart(),
    "one step": all_good(1),
    "no step": all_good(0),
    "scrolling": with_steps(all_good(80), {30: lost(iteration(30), GapReason.OVERLOAD)}),
    "hostile": hostile(),
    "not finite": with_steps(all_good(3), {2: replace(iteration(2), loss=float("nan"))}),
}


def section(page: Node, name: str) -> Node:
    (found,) = page.find("section", id=name)
    return found


def rows(page: Node, name: str) -> list[list[str]]:
    """Texts of the cells of a section's first table body."""
    body = section(page, name).find("tbody")[0]
    return [[" ".join(cell.text.split()) for cell in row.children] for row in body.find("tr")]


@dataclass(frozen=True)
class Page:
    result: RunResult
    html: str
    root: Node


@cache
def page_of(name: str) -> Page:
    html = render_report(RUNS[name])
    return Page(RUNS[name], html, read_page(html))


@pytest.fixture(params=RUNS)
def every(request: pytest.FixtureRequest) -> Page:
    return page_of(request.param)


def test_every_page_is_well_formed_and_stands_alone(every: Page) -> None:
    html, page = every.html, every.root
    assert not page.find("script")
    assert not page.find("link")
    assert not [n for n in page.find() if any(name in n.attributes for name in ("src", "srcset", "onclick", "onload"))]
    assert not re.search(r"https?://", html.replace(f'xmlns="{SVG_NAMESPACE}"', ""))
    assert not re.search(r"@import|url\((?!#)", html)
    assert (
        "default-src 'none'" in page.find("meta", **{"http-equiv": "Content-Security-Policy"})[0].attributes["content"]
    )
    assert render_report(every.result) == html


def test_every_reference_within_the_page_has_its_target(every: Page) -> None:
    html, page = every.html, every.root
    ids = [node.attributes["id"] for node in page.find() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    links = [node.attributes["href"] for node in page.find("a")]
    assert len(links) == 8
    assert all(link.startswith("#") for link in links)
    named = " ".join(node.attributes.get("aria-labelledby", "") for node in page.find()).split()
    hatches = re.findall(r"url\(#([\w-]+)\)", html)
    targets = {
        *(link[1:] for link in links),
        *named,
        *hatches,
        *(n.attributes["for"] for n in page.find("label")),
    }
    assert targets <= set(ids)


def test_every_image_is_valid_svg_with_title_and_description(every: Page) -> None:
    images = svg_images(every.html)
    plots = {"plot-progress", "plot-loss", "plot-bytes", "plot-lag", "plot-steps"} if every.result.iterations else set()
    assert set(images) == {"topology"} | plots
    for name, image in images.items():
        title, description = image[0], image[1]
        assert title.attrib["id"] == f"{name}-title"
        assert title.text
        assert description.attrib["id"] == f"{name}-desc"
        assert description.text


def test_every_table_has_a_caption_and_headed_columns_and_rows(every: Page) -> None:
    tables = every.root.find("table")
    assert tables
    for table in tables:
        assert table.find("caption")[0].text
        heads = table.find("thead")[0].find("th", scope="col")
        for row in table.find("tbody")[0].find("tr"):
            assert row.find("th", scope="row") or row.find("td")[0].attributes["colspan"] == str(len(heads))


def test_the_verdict_leads_and_says_what_does_not_hold() -> None:
    page = read_page(render_report(all_good()))
    verdict = section(page, "verdict")
    assert verdict.has("class", "good")
    assert " ".join(verdict.find("h2")[0].text.split()) == (
        "Passed shadow == trainer: 20/20 iterations, restart identical"
    )
    assert len(verdict.find("li", class_="yes")) == 5
    assert "passed" in page.find("title")[0].text

    page = read_page(render_report(lost_step()))
    verdict = section(page, "verdict")
    assert verdict.has("class", "bad")
    (failed,) = verdict.find("li", class_="no")
    assert "does NOT hold:" in failed.text
    assert "steps 7-9" in failed.text
    assert "FAILED" in page.find("title")[0].text


def figures(result: RunResult) -> dict[str, tuple[str, str]]:
    found = read_page(render_report(result)).find("div", class_="figure")
    return {f.find("dt")[0].text: (f.find("dd")[0].text, f.attributes["class"]) for f in found}


def test_key_figures() -> None:
    good = figures(all_good())
    assert good["Iterations verified"] == ("20 / 20", "figure good")
    assert good["Restart from step 10"] == ("identical", "figure good")
    assert good["Replica bytes per complete step"] == ("1.00\N{MULTIPLICATION SIGN}", "figure good")
    assert good["Newest step trained / recoverable"][0] == "20 / 20"
    assert good["Accuracy"][0] == "97.2%"
    assert good["Wall time"][0] == "41.3 s"

    bad = figures(no_restart())
    assert bad["Restart"] == ("not possible", "figure bad")
    assert bad["Ranks"] == ("NOT equal", "figure bad")
    assert bad["Replica bytes per complete step"] == ("none", "figure bad")
    assert bad["Newest step trained / recoverable"][0] == "5 / 0"
    assert "Accuracy" not in bad
    assert "Lag of the recovery point" not in bad


def test_several_groups_and_shadows_are_told_apart() -> None:
    result = with_row(several(), ("dp1", "sh0"), lost(iteration(2), GapReason.LOST_BYTES, "flow 3"))
    page = read_page(render_report(result))
    found = rows(page, "iterations")
    assert [row[:3] for row in found[4:8]] == [[("2"), g, s] for g in ("dp0", "dp1") for s in ("sh0", "sh1")]
    assert [row[1:3] for row in rows(page, "restart")[:2]] == [["dp0", "sh0"], ["dp0", "sh1"]]
    # The loss beside a restarted step is that of the same group.
    assert all(row[3] == row[4] for row in rows(page, "restart"))
    assert "dp1 on sh0, step 2: flow 3" in " ".join(section(page, "gaps").text.split())
    assert section(page, "topology-section").find("path", class_="g1")
    good = figures(several())
    assert good["Replica bytes per complete step"] == ("1.00\N{MULTIPLICATION SIGN}", "figure good")
    assert good["Iterations verified"][0] == "24 / 24"
    assert "is 2 times the tagged payload" in section(read_page(render_report(several())), "plots").text


def test_replicating_more_than_once_is_marked() -> None:
    doubled = [replace(i, replica_payload_bytes=2 * i.replica_payload_bytes) for i in all_good().iterations]
    found = figures(replace(all_good(), iterations=tuple(doubled)))
    assert found["Replica bytes per complete step"] == ("2.00\N{MULTIPLICATION SIGN}", "figure bad")


def test_header_names_switch_fabric_and_seed() -> None:
    facts = read_page(render_report(all_good(seed=42, switch="bmv2", fabric="mininet"))).find("ul", class_="facts")[0]
    for fact in (
        "4 ranks",
        "switch bmv2",
        "fabric mininet",
        "MTU 1500",
        "DSCP 3",
        "optimizer AdamW",
        "seed 42",
    ):
        assert fact in facts.text


def test_virtual_time_is_called_that() -> None:
    simulated = read_page(render_report(all_good(fabric="inproc"))).text
    assert "In this fabric time is virtual" in simulated
    assert "(virtual time)" in simulated
    assert "virtual" not in read_page(render_report(all_good(fabric="mininet"))).text


def test_the_table_has_a_row_per_iteration_with_its_gaps() -> None:
    found = rows(read_page(render_report(lost_step())), "iterations")
    assert len(found) == 20
    assert found[0] == ["1", "2.1580", "311,907", "47,680", "47,680", "✓ yes", "✓ yes", "✓ equal", "5.12", ""]
    detail = "lost_bytes flow 2 (r2 to r3), bytes 81320 to 82780"
    assert found[6] == [
        "7",
        "1.1243",
        "311,987",
        "47,680",
        "46,220",
        "✗ no",
        "✗ no",
        "\N{EN DASH}",
        "\N{EN DASH}",
        detail,
    ]
    assert found[7][5:] == [
        "✓ yes",
        "✗ no",
        "\N{EN DASH}",
        "\N{EN DASH}",
        "resync_pending waiting for a snapshot",
    ]


def test_a_wrong_checkpoint_is_an_alarm_that_names_the_tensor() -> None:
    page = read_page(render_report(mismatch()))
    assert rows(page, "iterations")[4][7:] == [
        "✗ differs", "2.86", "first difference: exp_avg of layers.2.weight: element 17",
    ]  # fmt: skip
    (alarm,) = section(page, "gaps").find("div", class_="alarm")
    assert "step 5: exp_avg of layers.2.weight: element 17" in alarm.text
    assert not section(read_page(render_report(lost_step())), "gaps").find("div", class_="alarm")


@pytest.mark.parametrize("reason", [*GapReason, "solar_flare", None])
def test_every_gap_is_explained_in_plain_words(reason: str | None) -> None:
    result = with_steps(all_good(5), {2: lost(iteration(2), reason, "the detail")})
    (card,) = section(read_page(render_report(result)), "gaps").find("div", class_="card")
    assert card.find("h3")[0].text == f"{reason or 'unreported'} 1 step"
    assert gap_meaning(reason or "unreported") in card.text
    assert "step 2: the detail" in card.text


def test_a_run_without_gaps_says_so() -> None:
    text = section(read_page(render_report(all_good())), "gaps").text
    assert "each of the 20 steps has its recovery point" in text
    assert not any(meaning in text for meaning in GAP_MEANING.values())


def test_the_restart_is_told_with_its_steps() -> None:
    page = read_page(render_report(all_good()))
    text = section(page, "restart").text
    assert "dropped after step 10" in text
    assert "equals the uninterrupted run's byte for byte" in text
    found = rows(page, "restart")
    assert [row[0] for row in found] == [str(step) for step in range(11, 21)]
    assert all(row[1] == row[2] for row in found)

    assert (
        "There was no restart: no recovery point was published"
        in section(read_page(render_report(no_restart())), "restart").text
    )
    assert "does not equal the uninterrupted run's: parameter layers.2.weight" in " ".join(
        section(read_page(render_report(mismatch())), "restart").text.split()
    )


def test_a_gap_of_the_restarted_run_is_told_too() -> None:
    good = all_good(4)
    again = (good.restart.iterations[0], lost(good.restart.iterations[1], GapReason.FLOW_RESET, "flow 3"))
    result = replace(good, restart=replace(good.restart, iterations=again))
    page = read_page(render_report(result))
    assert section(page, "verdict").has("class", "bad")
    assert GAP_MEANING[GapReason.FLOW_RESET] in section(page, "restart").text


def test_counters_discards_and_faults_are_listed() -> None:
    page = read_page(render_report(lost_step()))
    found = section(page, "switch")
    assert ["replicated", "812", "copied to a shadow node"] in rows(page, "switch")
    assert "duplicate" in found.text
    assert "drop replica: flow 2, step 7" in found.text
    plain = section(read_page(render_report(all_good(switch_counters={}))), "switch").text
    for text in ("No counters were read", "every replica was placed", "a run without disturbance"):
        assert text in plain


def test_the_configuration_is_the_job_itself() -> None:
    result = all_good(ranks=8)
    (config,) = section(read_page(render_report(result)), "config").find("pre")
    assert Job.model_validate(yaml.safe_load(config.text)) == result.job


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    html = render_report(hostile())
    page = read_page(html)
    assert not page.find("script")
    assert "<script" not in html
    shown = printable(HOSTILE)
    assert "{{ 7*7 }}" in shown
    for name in ("verdict", "iterations", "gaps", "restart", "switch"):
        assert shown in section(page, name).text
    assert not set("\x1b\x00\ud800\u202e") & set(html)


def test_a_long_run_scrolls_folds_and_stays_small() -> None:
    html = render_report(long_run())
    assert len(html) < 1_200_000
    page = read_page(html)
    assert len(rows(page, "iterations")) == 1000
    assert section(page, "iterations").find("div", class_="scroll")
    assert section(page, "iterations").find("input", id="only-gaps")
    assert "open" not in section(page, "restart").find("details")[0].attributes
    # On paper: the first and last ten, and all nine without a recovery point.
    assert (
        len(section(page, "iterations").find("tr")) - 1 - len(section(page, "iterations").find("tr", class_="middle"))
        == 29
    )
    for image in svg_images(html).values():
        assert sum(1 for _ in image.iter()) < 1200


def test_a_very_long_run_leaves_out_verified_steps_only() -> None:
    result = with_steps(all_good(2500), {1250: lost(iteration(1250), GapReason.OVERLOAD)})
    html = render_report(result)
    found = rows(read_page(html), "iterations")
    assert [row for row in found if len(row) == 1] == [
        ["749 verified steps left out"],
        ["750 verified steps left out"],
    ]
    assert any(row[0] == "1250" for row in found)


def test_a_loss_that_is_no_number_is_named_not_drawn() -> None:
    page = read_page(render_report(RUNS["not finite"]))
    assert "Not a finite number at step 2." in section(page, "plots").text
    assert rows(page, "iterations")[1][1] == "nan"


def test_writing_the_page(tmp_path: Path) -> None:
    write_report(hostile(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_report(hostile())


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, other: str) -> float:
    """WCAG 2.2, definition of contrast ratio."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_are_readable(theme: int) -> None:
    blocks = re.findall(r":root \{(.*?)\}", (TEMPLATES / "report.css").read_text(), re.DOTALL)
    assert len(blocks) == 2
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[theme]))
    backs = ["page", "card", "head", "good-back", "bad-back", "replica-back", "rank-back"]
    for back in backs:
        assert _contrast(colours["text"], colours[back]) >= 7, back
        assert _contrast(colours["muted"], colours[back]) >= 4.5, back
    for colour, grounds in {
        "good": ["card", "good-back"],
        "bad": ["card", "bad-back"],
        "replica": ["card"],
        "loss": ["page", "card"],
    }.items():
        for ground in grounds:
            wanted = 3 if colour == "replica" else 4.5
            assert _contrast(colours[colour], colours[ground]) >= wanted, (colour, ground)
    # Lines and outlines: 3 to 1 (WCAG 1.4.11).
    for colour in ("ring", "tagged", "lag", "axis", *(f"group-{index}" for index in range(1, 6))):
        assert _contrast(colours[colour], colours["card"]) >= 3, colour
