"""Resources of a compiled program on Tofino: stages, memories, packet header vector, from the backend's JSON reports.

Schemas: p4c, ``backends/tofino/bf-p4c/logging/schemas`` (``resources.json`` 2.4, ``phv.json`` 3.0).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

_STAGE = re.compile(r"^stage (\d+) (ingress|egress):\n((?:  .*\n)*)", re.MULTILINE)
_TABLE = re.compile(r"^  (?:exact_match|ternary_match|hash_action|gateway|atcam_match) \S+", re.MULTILINE)


class ResourceError(ValueError):
    """A report cannot be used: missing, from a failed run, or without a field; names it."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StageUse(_Model):
    """Use of one match-action stage by both directions."""

    stage: int
    """The stage, from 0."""
    ingress_tables: int
    """Logical tables of the ingress, including conditions."""
    egress_tables: int
    """Logical tables of the egress."""
    srams: int
    """SRAM blocks."""
    map_rams: int
    """Map RAM blocks (of counters and registers)."""
    tcams: int
    """TCAM blocks."""
    stateful_alus: int
    """Stateful ALUs (registers)."""
    counter_alus: int
    """Counter ALUs."""


class Resources(_Model):
    """Summary of one target."""

    target: str
    """``tofino`` or ``tofino2``."""
    compiler: str
    """Version of the backend, with the revision of its source."""
    stages: int
    """Stages of the target."""
    ingress_stages: int
    """Stages from the first to the last one that the ingress uses."""
    egress_stages: int
    """Stages from the first to the last one that the egress uses."""
    srams_per_stage: int
    """SRAM blocks per stage."""
    tcams_per_stage: int
    """TCAM blocks per stage."""
    phv_bits: int
    """Bits of all normal containers of the packet header vector."""
    phv_bits_used: int
    """Bits of the normal containers in use."""
    phv_containers: int
    """Normal containers."""
    phv_containers_used: int
    """Normal containers in use."""
    parser_states: dict[str, int]
    """TCAM rows of the parsers by direction, of 256 each."""
    use: tuple[StageUse, ...]
    """The stages in use, in order."""


def read_resources(output: Path) -> Resources:
    """Read the reports of ``p4c -g`` from its output folder.

    Raises:
        ResourceError: the run failed, or a report is missing or has an unexpected form.
    """
    manifest = _load(output / "manifest.json")
    if manifest.get("compilation_succeeded") is not True:
        raise ResourceError(f"{output}: according to the compiler the compilation failed; its figures are invalid")
    logs = output / "pipe" / "logs"
    report, phv = _load(logs / "resources.json"), _load(logs / "phv.json")
    assembly = (output / "pipe" / "checkmate.bfa").read_text()
    try:
        resources = report["resources"]
        stages = resources["mau"]["mau_stages"]
        tables = dict(_tables(assembly))
        pools = resources["phv_containers"]["normal"]
        normal = [one for one in phv["containers"] if one["container_type"] == "normal"]
        return Resources(
            target=str(phv["target"]),
            compiler=str(manifest["compiler_version"]),
            stages=int(phv["nStages"]),
            ingress_stages=1 + max(stage for stage, direction in tables if direction == "ingress"),
            egress_stages=1 + max(stage for stage, direction in tables if direction == "egress"),
            srams_per_stage=stages[0]["rams"]["nRows"] * stages[0]["rams"]["nColumns"],
            tcams_per_stage=stages[0]["tcams"]["nRows"] * stages[0]["tcams"]["nColumns"],
            phv_bits=sum(pool["units"] * pool["width"] for pool in pools),
            phv_bits_used=sum(one["bit_width"] for one in normal),
            phv_containers=sum(pool["units"] for pool in pools),
            phv_containers_used=len(normal),
            parser_states={one["gress"]: len(one["states"]) for one in resources["parser"]["parsers"]},
            use=tuple(_use(stage, tables) for stage in stages if stage["logical_tables"]["ids"]),
        )
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise ResourceError(f"{logs}: the reports have an unexpected form: {error!r}") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResourceError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ResourceError(f"{path} is not a JSON object")
    return value


def _tables(assembly: str) -> Iterator[tuple[tuple[int, str], int]]:
    """Yield the number of logical tables by stage and direction, if not 0."""
    for stage, direction, body in _STAGE.findall(assembly):
        if count := len(_TABLE.findall(body)):
            yield (int(stage), direction), count


def _use(stage: dict[str, Any], tables: dict[tuple[int, str], int]) -> StageUse:
    number = int(stage["stage_number"])
    return StageUse(
        stage=number,
        ingress_tables=tables.get((number, "ingress"), 0),
        egress_tables=tables.get((number, "egress"), 0),
        srams=_used(stage["rams"]["srams"]),
        map_rams=_used(stage["map_rams"]["maprams"]),
        tcams=_used(stage["tcams"]["tcams"]),
        stateful_alus=_used(stage["meter_alus"]["meters"]),
        counter_alus=_used(stage["statistic_alus"]["stats"]),
    )


def _used(blocks: Iterable[dict[str, Any]]) -> int:
    return sum(1 for block in blocks if block["usages"])


def summary_table(resources: Resources) -> str:
    """Return the summary as a Markdown table."""
    lines = [
        f"{resources.ingress_stages} ingress and {resources.egress_stages} egress stages of {resources.stages}; "
        f"{resources.phv_containers_used} of {resources.phv_containers} normal PHV containers "
        f"({resources.phv_bits_used} of {resources.phv_bits} bits); parser TCAM rows: "
        + ", ".join(
            f"{count} {direction}" for direction, count in sorted(resources.parser_states.items(), reverse=True)
        )
        + " of 256 each.",
        "",
        "| stage | ingress tables | egress tables | SRAM | map RAM | TCAM | stateful ALUs | counter ALUs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for use in resources.use:
        srams, tcams = f"{use.srams} of {resources.srams_per_stage}", f"{use.tcams} of {resources.tcams_per_stage}"
        cells = [use.stage, use.ingress_tables, use.egress_tables, srams, use.map_rams, tcams, use.stateful_alus]
        lines.append(f"| {' | '.join(map(str, cells))} | {use.counter_alus} |")
    return "\n".join(lines)
