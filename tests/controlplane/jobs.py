"""Jobs for the tests, made from the example file's text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jobspec.loader import parse_job
from jobspec.model import Job

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


@dataclass(frozen=True)
class JobText:
    """A small job file; the fields are what tests vary."""

    name: str = "one"
    id: int = 1
    first_port: int = 1
    hosts: int = 3
    ring: tuple[int, ...] = (0, 1, 2)
    shadows: int = 1
    channels: int = 1
    first_flow_id: int = 0
    first_rid: int = 1
    base_port: int = 20000
    ports: int = 40
    device_id: int = 1
    dscp: int = 3

    def text(self) -> str:
        """Return the YAML."""
        hosts = [
            f'  - {{name: h{i}, port: {self.first_port + i}, mac: "02:00:00:{self.id:02x}:01:{i:02x}", '
            f"ip: 10.{self.id}.0.{10 + i}}}"
            for i in range(self.hosts)
        ]
        shadows = [
            f"  - {{name: s{i}, port: {self.first_port + self.hosts + i}, "
            f'mac: "02:00:00:{self.id:02x}:02:{i:02x}", '
            f"ip: 10.{self.id}.1.{10 + i}, base_port: {self.base_port}, rid: {self.first_rid + i}}}"
            for i in range(self.shadows)
        ]
        ring = ", ".join(f"h{i}" for i in self.ring)
        names = ", ".join(f"s{i}" for i in range(self.shadows))
        return "\n".join(
            [
                "version: 1",
                f"name: {self.name}",
                f"id: {self.id}",
                f"switch: {{name: sw, device_id: {self.device_id}, ports: {self.ports}}}",
                f"dscp: {{primary: {self.dscp}, redundant: 63}}",
                "hosts:",
                *hosts,
                "shadows:",
                *shadows,
                f"first_flow_id: {self.first_flow_id}",
                "groups:",
                f"  - {{name: g0, ring: [{ring}], channels: {self.channels}, shadows: [{names}]}}",
                "",
            ]
        )

    def job(self) -> Job:
        """Return the validated job."""
        return parse_job(self.text(), f"{self.name}.yaml").job


def other_job(**changes: object) -> JobText:
    """Return a job that shares a switch with `JobText()`."""
    values: dict[str, object] = {
        "name": "two", "id": 2, "first_port": 11, "first_flow_id": 16, "first_rid": 5, **changes
    }  # fmt: skip
    return JobText(**values)  # type: ignore[arg-type]
