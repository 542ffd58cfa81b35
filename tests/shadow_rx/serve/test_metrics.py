"""Prometheus metrics: what is scraped is what the status says; documents and dashboard name only what exists."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from checkmate_common.recovery.reasons import GapReason
from shadow_rx.errors import ShadowError
from shadow_rx.publish.publisher import DirectPublisher
from shadow_rx.serve.metrics import HISTOGRAMS, METRICS, PREFIX, MetricsServer, metric_names
from shadow_rx.status.health import Part
from shadow_rx.store.writer import RecoveryStore
from tests.shadow_rx.serve.promql import base_name, is_balanced, labels_in, metric_names_in
from tests.shadow_rx.status.test_status import StatusRig
from tests.shadow_rx.twin import upload

ROOT = Path(__file__).parents[3]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
DASHBOARD = ROOT / "dashboards" / "checkmate-grafana.json"
HISTOGRAM_NAMES = {PREFIX + spec.name for spec in HISTOGRAMS}
LABELS = {"training_job", "shadow", "group", "part", "le", "version", "job", "instance"}.union(
    *(m.labels for m in METRICS)
)
UNITS = ("_seconds", "_bytes", "_ratio", "_steps", "_step", "_total", "_info")


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[tuple[StatusRig, MetricsServer]]:
    rig = StatusRig(DirectPublisher(RecoveryStore(tmp_path)), hops=(0, 1))
    server = MetricsServer(rig.node, "127.0.0.1:0")
    yield rig, server
    server.stop()


def scrape(server: MetricsServer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    common = {"training_job": "test", "shadow": "sh0", "group": "dp0"}
    return found[PREFIX + name, frozenset({**common, **labels}.items())]


def test_a_scrape_tells_what_the_status_tells(scraped: tuple[StatusRig, MetricsServer]) -> None:
    rig, server = scraped
    rig.begin()
    rig.now = 1.0
    rig.step()
    rig.now = 2.0
    rig.step()
    rig.send(rig.train()[1:])
    rig.record()
    rig.now = 5.0
    found, status = scrape(server), rig.node.status("dp0")
    assert value(found, "trained_step") == 3
    assert value(found, "replica_step") == value(found, "durable_step") == 2
    assert value(found, "replica_lag_seconds") == 3.0
    assert value(found, "lag_steps", stage="replica", reason="lost_bytes") == 1
    assert value(found, "lag_steps", stage="replica", reason="overload") == 0
    assert value(found, "replica_payload_bytes_total") == status.replica_payload_bytes > 0
    assert value(found, "replicated_steps_total") == value(found, "stored_steps_total") == 2
    assert value(found, "memory_limit_bytes") == 1 << 20
    assert value(found, "memory_bytes", use="state") == status.health.buffers.state_bytes
    assert value(found, "step_apply_seconds_count") == 2
    assert value(found, "step_apply_seconds_bucket", le="+Inf") == 2
    flow = str(rig.job.flows[0].id)
    assert value(found, "flow_coverage_ratio", flow=flow, copy="redundant") == 0
    assert 0 < value(found, "flow_coverage_ratio", flow=flow, copy="primary") <= 1
    for reason in GapReason:
        assert value(found, "gap_steps_total", reason=str(reason)) == 0, "there from the start"
    for _ in range(2):
        rig.step()
    upload(rig.node, 1, rig.twin.state_bytes(), 5)
    again = scrape(server)
    assert value(again, "gap_steps_total", reason="lost_bytes") == 1
    assert value(again, "resyncs_total") == 1
    info = [key for key in again if key[0] == f"{PREFIX}build_info"]
    assert len(info) == 1


def test_counters_never_go_back(scraped: tuple[StatusRig, MetricsServer]) -> None:
    rig, server = scraped
    before: dict[Any, float] = {}
    for epoch in range(2):
        rig.begin()
        for _ in range(2):
            rig.step()
            found = scrape(server)
            counters = {
                key: number for key, number in found.items() if key[0].endswith(("_total", "_bucket", "_count"))
            }
            assert all(counters[key] >= number for key, number in before.items()), f"epoch {epoch}"
            before = counters


def test_every_scraped_name_is_declared_and_the_other_way_round(scraped: tuple[StatusRig, MetricsServer]) -> None:
    rig, server = scraped
    rig.begin()
    rig.step()
    rig.node.on_frames([b"junk"])
    rig.node.add_part(lambda: Part("capture"))
    names = {base_name(name, HISTOGRAM_NAMES) for name, _ in scrape(server)}
    assert names == set(metric_names())


def test_names_follow_the_conventions() -> None:
    for name, text in metric_names().items():
        assert re.fullmatch(r"checkmate_shadow_[a-z]+(_[a-z]+)*", name)
        assert text.endswith(".")
        assert not re.search(r"(milli|micro|kilo|mega|percent|_ms$|_kb$)", name), "base units"
    for spec in METRICS:
        assert not spec.name.endswith("_total"), "the suffix is added"
        assert not set(spec.labels) & {"training_job", "shadow", "group", "le"}


def test_two_nodes_in_one_process_do_not_meet() -> None:
    one, other = StatusRig(), StatusRig()
    servers = [MetricsServer(rig.node, "127.0.0.1:0") for rig in (one, other)]
    one.begin()
    one.step()
    try:
        assert [value(scrape(server), "trained_step") for server in servers] == [1, 0]
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "256.0.0.1:0"])
def test_an_address_that_cannot_be_used_is_refused(address: str) -> None:
    with pytest.raises(ShadowError, match="metrics"):
        MetricsServer(StatusRig().node, address)


def test_a_port_that_is_taken_is_refused(scraped: tuple[StatusRig, MetricsServer]) -> None:
    rig, server = scraped
    with pytest.raises(ShadowError, match="cannot listen"):
        MetricsServer(rig.node, server.address)


# ---- documents and dashboard ----


def check_expression(expression: str) -> None:
    assert is_balanced(expression), expression
    names = metric_names_in(expression)
    assert names, f"{expression} reads nothing"
    for name in names:
        known = base_name(name, HISTOGRAM_NAMES)
        assert known in metric_names() or name == "up", f"{expression} reads {name}, which does not exist"
        assert known != name or name not in HISTOGRAM_NAMES, f"{name} is a histogram: it has no series of this name"
    assert labels_in(expression) <= LABELS, f"{expression}: {labels_in(expression) - LABELS}"


def test_the_checker_sees_through_what_is_wrong() -> None:
    check_expression('sum by (group) (rate(checkmate_shadow_gap_steps_total{reason="overload"}[5m])) > 0')
    for wrong in (
        "checkmate_shadow_no_such_thing > 1",
        "rate(checkmate_shadow_gap_steps_total{cause_of_death='x'}[5m])",
        "checkmate_shadow_step_apply_seconds > 1",
        "sum(checkmate_shadow_trained_step",
        "1 > 0",
    ):
        with pytest.raises(AssertionError):
            check_expression(wrong)


def test_the_documents_expressions_read_what_exists() -> None:
    blocks = re.findall(r"```promql\n(.*?)```", OPERATIONS, flags=re.S)
    assert len(blocks) >= 8
    for block in blocks:
        check_expression(" ".join(line for line in block.splitlines() if not line.startswith("#")))


def test_the_document_describes_every_metric_and_every_reason() -> None:
    for name, text in metric_names().items():
        assert f"| `{name}" in OPERATIONS, f"docs/operations.md lacks {name}"
        assert text in OPERATIONS, f"docs/operations.md describes {name} in other words: {text}"
    described = set(re.findall(r"^\| `(checkmate_shadow_\w+)", OPERATIONS, flags=re.M))
    assert described == set(metric_names())
    for reason in GapReason:
        assert re.search(rf"^\| `{reason}` \|", OPERATIONS, flags=re.M), f"docs/operations.md lacks {reason}"


def test_the_alert_rules_are_the_documents(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    rules = yaml.safe_load((ROOT / "dashboards" / "checkmate-alerts.yaml").read_text())
    (group,) = rules["groups"]
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description"}
        check_expression(rule["expr"])
        assert rule["alert"] in OPERATIONS, f"docs/operations.md lacks {rule['alert']}"
        blocks = ["".join(block.split()) for block in re.findall(r"```promql\n(.*?)```", OPERATIONS, flags=re.S)]
        assert "".join(rule["expr"].split()) in blocks, f"docs/operations.md has another expression of {rule['alert']}"


def panels(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in items:
        yield item
        yield from panels(item.get("panels", []))


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board = json.loads(DASHBOARD.read_text())
    assert board["schemaVersion"] >= 36
    assert board["title"]
    assert re.fullmatch(r"[a-z0-9-]{1,40}", board["uid"])
    assert board["id"] is None, "an id of another installation would overwrite a dashboard there"
    declared = {variable["name"] for variable in board["templating"]["list"]}
    ids, places = set(), set()
    shown = [panel for panel in panels(board["panels"]) if panel["type"] != "row"]
    assert len(shown) >= 10
    for panel in panels(board["panels"]):
        assert panel["id"] not in ids
        ids.add(panel["id"])
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, f"{panel['title']} lies over another panel"
        places |= cells
    for panel in shown:
        assert panel["title"]
        assert panel["description"], f"{panel['title']} does not say what it shows"
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"]
        for target in panel["targets"]:
            check_expression(target["expr"])
            used = set(re.findall(r"\$\{?(\w+)\}?", target["expr"])) - {"__rate_interval", "__range"}
            assert used <= declared, f"{target['expr']}: {used - declared}"
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            check_expression(variable["query"]["query"].replace("label_values(", "max(").rsplit(",", 1)[0] + ")")


def test_every_metric_that_tells_of_trouble_is_on_the_dashboard() -> None:
    board = json.loads(DASHBOARD.read_text())
    read = {
        base_name(name, HISTOGRAM_NAMES)
        for panel in panels(board["panels"])
        for target in panel.get("targets", [])
        for name in metric_names_in(target["expr"])
    }
    assert set(metric_names()) - read <= {f"{PREFIX}epoch", f"{PREFIX}slots", f"{PREFIX}held_points"}
