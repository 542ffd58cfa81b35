"""Prometheus metrics of a shadow node: its status in the exposition format, read when it is scraped.

Names follow https://prometheus.io/docs/practices/naming/: base units, ``_total`` for what only grows. Nothing is
counted here: every sample is a field of the status (`shadow_rx.status.group_status`), so that the two can never differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from checkmate_common.recovery.reasons import GapReason
from checkmate_common.supervised import SupervisedThread
from checkmate_common.version import program_version
from shadow_rx.errors import invalid
from shadow_rx.node import ShadowNode
from shadow_rx.serve.guard import Admission
from shadow_rx.serve.metrics_http import metrics_http
from shadow_rx.status.group_status import GroupStatus
from shadow_rx.status.health import Part
from shadow_rx.status.histogram import Distribution

PREFIX = "checkmate_shadow_"
_COMMON = ("training_job", "shadow", "group")
"""``job`` is Prometheus' own label, of the scrape job."""

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Values of the further labels, and the value."""


@dataclass(frozen=True)
class MetricSpec:
    """A metric of a group."""

    name: str
    """Name, without prefix and, of counters, without ``_total``."""
    kind: Literal["gauge", "counter"]
    """Its type."""
    text: str
    """What it tells, with its unit."""
    read: Callable[[GroupStatus], Samples]
    """Takes it from a status."""
    labels: tuple[str, ...] = ()
    """Labels besides `_COMMON`."""

    @property
    def full_name(self) -> str:
        """Name as it is scraped."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"


@dataclass(frozen=True)
class HistogramSpec:
    """A histogram of a group."""

    name: str
    """Name, without prefix."""
    text: str
    """What it tells."""
    read: Callable[[GroupStatus], Distribution]
    """Takes it from a status."""


def _gauge(name: str, text: str, read: Callable[[GroupStatus], float]) -> MetricSpec:
    return MetricSpec(name, "gauge", text, lambda status: [((), read(status))])


def _counter(name: str, text: str, read: Callable[[GroupStatus], float]) -> MetricSpec:
    return MetricSpec(name, "counter", text, lambda status: [((), read(status))])


def _by_name(read: Callable[[GroupStatus], Mapping[str, int]]) -> Callable[[GroupStatus], Samples]:
    return lambda status: [((name,), count) for name, count in read(status).items()]


def _by_reason(read: Callable[[GroupStatus], Mapping[str, int]]) -> Callable[[GroupStatus], Samples]:
    # All reasons from the start: a rate over a counter that begins with its first event misses that event.
    return lambda status: [((str(reason),), read(status).get(str(reason), 0)) for reason in GapReason]


def _present_gaps(status: GroupStatus) -> Samples:
    health = status.health
    for reason in GapReason:
        for stage, lag in (("replica", health.replica_lag), ("durable", health.durable_lag)):
            yield (stage, str(reason)), lag.steps if lag.reason is reason else 0


def _coverage(status: GroupStatus) -> Samples:
    for flow in status.health.coverage:
        yield (str(flow.flow_id), "primary"), _ratio(flow.primary, flow.primary_expected)
        if flow.redundant_expected:
            yield (str(flow.flow_id), "redundant"), _ratio(flow.redundant, flow.redundant_expected)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


def _bound(seconds: float) -> str:
    return "+Inf" if seconds == float("inf") else str(seconds)


def _memory(status: GroupStatus) -> Samples:
    buffers = status.health.buffers
    return [
        (("collecting",), buffers.collecting_bytes),
        (("state",), buffers.state_bytes),
        (("store_queue",), buffers.store.waiting_bytes),
        (("log",), buffers.store.log_bytes),
    ]


METRICS: tuple[MetricSpec, ...] = (
    _gauge("epoch", "Incarnation of the group's communicator, 0 before one.", lambda s: s.epoch),
    _gauge("trained_step", "Newest step that the ranks announced.", lambda s: s.trained_step),
    _gauge("replica_step", "Newest step that is a recovery point.", lambda s: s.replica_step),
    _gauge("durable_step", "Newest recovery point that is on storage.", lambda s: s.durable_step),
    _gauge("replica_lag_seconds", "How long the oldest announced step has been waiting to become a recovery point.",
           lambda s: s.health.replica_lag.seconds),
    _gauge("durable_lag_seconds", "How long the oldest recovery point has been waiting to be stored.",
           lambda s: s.health.durable_lag.seconds),
    _gauge("replica_lag_bytes", "Replica bytes of announced steps not yet received.",
           lambda s: s.health.replica_lag.bytes),
    _gauge("durable_lag_bytes", "Gradient bytes of recovery points not yet on storage.",
           lambda s: s.health.durable_lag.bytes),
    MetricSpec(
        "lag_steps", "gauge",
        "Steps between trained and replica (stage replica) or replica and durable (stage durable), under the reason "
        "of the oldest of them; 0 under every other reason.",
        _present_gaps, ("stage", "reason"),
    ),
    MetricSpec(
        "flow_coverage_ratio", "gauge",
        "Share of received bytes in one flow's part of the step that is being collected, by kind of copy.",
        _coverage, ("flow", "copy"),
    ),
    _gauge("slots", "Steps that can be collected at a time.", lambda s: s.health.buffers.slots),
    _gauge("slots_used", "Steps that are being collected.", lambda s: s.health.buffers.slots_used),
    _gauge("held_points", "Recovery points in memory.", lambda s: s.health.buffers.held),
    _gauge("store_queue_length", "Recovery points that wait for storage.", lambda s: s.health.buffers.store.waiting),
    _gauge("store_queue_limit", "Maximum number of recovery points that may wait for storage.",
           lambda s: s.health.buffers.store.depth),
    _gauge(
        "store_stride_steps",
        "Distance of the waiting recovery points that are certain to be stored; above 1 while storage is too slow.",
        lambda s: s.health.buffers.store.stride,
    ),
    MetricSpec("memory_bytes", "gauge", "Memory of buffers and state, by use.", _memory, ("use",)),
    _gauge("memory_limit_bytes", "Configured limit of that memory.", lambda s: s.health.buffers.memory_limit),
    _gauge("apply_utilisation_ratio", "The node's work on a step divided by the time between steps; above 1: too slow.",
           lambda s: s.health.load.apply_utilisation),
    _gauge("store_utilisation_ratio", "Time to store a step divided by the time between steps; above 1: too slow.",
           lambda s: s.health.load.store_utilisation),
    _gauge("overloaded", "1 while the node or its storage falls behind training.", lambda s: s.health.overloaded),
    _gauge("nodes_needed", "Number of shadow nodes that would keep up.", lambda s: s.health.load.nodes_needed),
    _gauge("state_wanted", "1 while the trainer's state is requested, after a loss.",
           lambda s: s.state_from is not None),
    _counter("replica_packets", "Intact replicas received.", lambda s: s.replica_packets),
    _counter("replica_payload_bytes", "Payload bytes of these replicas.", lambda s: s.replica_payload_bytes),
    MetricSpec(
        "discarded_frames", "counter", "Frames and replicas with bytes that were not placed, by cause.",
        _by_name(lambda s: s.discarded), ("cause",),
    ),
    _counter("replicated_steps", "Steps that became recovery points.", lambda s: s.health.totals.replicated_steps),
    _counter("stored_steps", "Recovery points that became durable.", lambda s: s.health.totals.stored_steps),
    MetricSpec(
        "gap_steps", "counter", "Steps that could not become recovery points, by reason.",
        _by_reason(lambda s: s.health.totals.lost_steps), ("reason",),
    ),
    MetricSpec(
        "unstored_steps", "counter", "Recovery points that were not written to storage, by reason.",
        _by_reason(lambda s: s.health.totals.unstored_steps), ("reason",),
    ),
    _counter("repaired_bytes", "Replica bytes that only a redundant hop delivered.",
             lambda s: s.health.totals.repaired_bytes),
    _counter("peer_repaired_bytes", "Replica bytes that only another shadow node delivered.",
             lambda s: s.health.totals.peer_bytes),
    _counter("resyncs", "States that the trainer uploaded after a loss.", lambda s: s.health.totals.resyncs),
)  # fmt: skip
"""All metrics of a group but the histograms."""

HISTOGRAMS: tuple[HistogramSpec, ...] = (
    HistogramSpec(
        "step_apply_seconds",
        "The node's work on a step: placing its replicas and applying it.",
        lambda s: s.health.apply_seconds,
    ),
    HistogramSpec(
        "store_write_seconds",
        "Time of each write to storage.",
        lambda s: s.health.store_seconds,
    ),
)
"""Histograms of a group."""

PART_UP = f"{PREFIX}part_up"
PART_UP_TEXT = "1 while a part of the node (a thread or a log) works; 0 while it does not, or only partly."
PART_LOST = f"{PREFIX}part_lost_total"
PART_LOST_TEXT = "Lines or messages missing from a log, by part."
BUILD_INFO = f"{PREFIX}build_info"
BUILD_TEXT = "Always 1; the labels identify the running program."


def metric_names() -> Mapping[str, str]:
    """Return all names as they are scraped, histograms without suffix, and what each tells."""
    names = {spec.full_name: spec.text for spec in METRICS}
    names.update((f"{PREFIX}{spec.name}", spec.text) for spec in HISTOGRAMS)
    return MappingProxyType({**names, PART_UP: PART_UP_TEXT, PART_LOST: PART_LOST_TEXT, BUILD_INFO: BUILD_TEXT})


class ShadowCollector(Collector):
    """Reads a node's status whenever it is scraped."""

    def __init__(self, node: ShadowNode) -> None:
        """Collect from `node`."""
        self._node = node

    def describe(self) -> list[Metric]:
        """Return no names: registering must not need a status."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of all groups, of one look at each."""
        core = self._node.core
        statuses = [((core.job.name, core.shadow, group), self._node.status(group)) for group in core.groups]
        info = GaugeMetricFamily(BUILD_INFO, BUILD_TEXT, labels=("training_job", "shadow", "version"))
        info.add_metric((core.job.name, core.shadow, program_version()), 1)
        yield info
        labels = ("training_job", "shadow", "part")
        up, lost = (
            GaugeMetricFamily(PART_UP, PART_UP_TEXT, labels=labels),
            CounterMetricFamily(PART_LOST, PART_LOST_TEXT, labels=labels),
        )
        for part in self._node.parts():
            named = (core.job.name, core.shadow, part.name)
            up.add_metric(named, float(part.trouble is None))
            lost.add_metric(named, part.lost)
        yield up
        yield lost
        for spec in METRICS:
            family: CounterMetricFamily | GaugeMetricFamily
            kind = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
            family = kind(f"{PREFIX}{spec.name}", spec.text, labels=(*_COMMON, *spec.labels))
            for common, status in statuses:
                for values, value in spec.read(status):
                    family.add_metric((*common, *values), float(value))
            yield family
        for histogram in HISTOGRAMS:
            found = HistogramMetricFamily(f"{PREFIX}{histogram.name}", histogram.text, labels=_COMMON)
            for common, status in statuses:
                durations = histogram.read(status)
                buckets = [(_bound(bound), float(count)) for bound, count in durations.cumulative()]
                found.add_metric(common, buckets, durations.total)
            yield found


class MetricsServer:
    """Serves a node's metrics over HTTP, from its construction to `stop`."""

    def __init__(self, node: ShadowNode, address: str, admission: Admission = Admission()) -> None:  # noqa: B008
        """Serve `node` on `address`, ``host:port`` (port 0: any free one); with TLS, operators only.

        Raises:
            ShadowError: it cannot be listened on.
        """
        host, separator, port = address.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65535:
            raise invalid("metrics", f"{address!r}, expected HOST:PORT")
        registry = CollectorRegistry()
        registry.register(ShadowCollector(node))
        try:
            self._server = metrics_http(
                host.strip("[]"), int(port), registry, admission, node.core.job.name, node.core.shadow
            )
        except OSError as error:
            raise invalid("metrics", f"cannot listen on {address!r}: {error}") from error
        self._thread = SupervisedThread("metrics", self._server.serve_forever)
        self._thread.start()
        self.address = f"{host}:{self._server.server_port}"
        """Address that a scraper reaches it at: ``http://ADDRESS/metrics``."""

    def part(self) -> Part:
        """Return how the thread is that accepts connections."""
        return Part("metrics", self._thread.trouble)

    def stop(self) -> None:
        """Stop listening, and return when all is over."""
        if self._thread.trouble is None:  # `shutdown` waits for the loop, and never returns where it has ended
            self._server.shutdown()
        self._server.server_close()
        self._thread.join()
