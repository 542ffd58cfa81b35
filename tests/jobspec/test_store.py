"""The section ``store`` of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from jobspec.errors import JobError
from jobspec.loader import load_job
from jobspec.store import Fsync, Retention, StoreSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.yaml"


def job_with(tmp_path: Path, section: object) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(EXAMPLE.read_text()), "store": section}))
    return path


def test_what_is_not_said_is_every_step_flushed_and_all_kept() -> None:
    assert load_job(EXAMPLE).store == StoreSpec(every=1, base_every=50, fsync=Fsync.ALWAYS, retention=Retention())


def test_what_is_said(tmp_path: Path) -> None:
    said = {"every": 2, "base_every": 10, "fsync": "base", "retention": {"steps": 100, "bases": 2}}
    job = load_job(job_with(tmp_path, said))
    assert job.store.model_dump(mode="json") == said
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(job.model_dump(mode="json")))
    assert load_job(again).store == job.store


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"every": 0}, "store.every"),
        ({"base_every": 0}, "store.base_every"),
        ({"fsync": "sometimes"}, "store.fsync"),
        ({"retention": {"steps": 0}}, "store.retention.steps"),
        ({"retention": {"bases": -1}}, "store.retention.bases"),
        ({"keep": 3}, "store.keep"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, section: object, field: str) -> None:
    with pytest.raises(JobError) as caught:
        load_job(job_with(tmp_path, section))
    assert [problem.field for problem in caught.value.problems] == [field]
