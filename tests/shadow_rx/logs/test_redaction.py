"""Secrets of URLs are in no message, whatever they are made of; and a command that cannot log does nothing."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkmate.cli import app
from shadow_rx.redaction import redacted, shown
from shadow_rx.store.errors import StoreError, Trouble
from tests.shadow_rx.store.stores import snapshots, write

SECRET = "S3CR3T"
PIECES = (SECRET, "/", "@", ":", "?", "#", "&", "=", ";", " ", "%40", "\\", "[", "]", "'", "\n", "://", "ü", "x")


@pytest.mark.parametrize("seed", range(400))
def test_no_secret_is_left(seed: int) -> None:
    rng = random.Random(seed)

    def word() -> str:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 5))) + SECRET

    user = f"{word()}@" if rng.random() < 0.7 else ""
    query = f"{rng.choice('?#;')}sig={word()}{rng.choice(('', '&b=' + word()))}" if rng.random() < 0.7 else ""
    url = f"{rng.choice(('s3', 'ftp', 'https', 'simplecache::s3'))}://{user}host/bucket/run{query}"
    text = rng.choice(("", "cannot be reached: ")) + url + rng.choice(("", ": is not a store", " and more"))
    assert SECRET not in redacted(text), text
    assert SECRET not in str(StoreError(Trouble.MISSING, url, "dp0", f"{url} is not there"))


def test_places_without_secrets_are_kept() -> None:
    assert redacted("s3://bucket/run-7/a_b.c: is not a store") == "s3://bucket/run-7/a_b.c: is not a store"
    assert redacted("s3://key:secret@bucket/run") == "s3://...@bucket/run"
    assert redacted("/data/what?/a@b") == "/data/what?/a@b"
    assert shown("a\x1b[31m\nb\ud800") == "a\\x1b[31m\\nb\\ud800"


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.stderr


@pytest.mark.parametrize("log", ["directory", "/dev/full", "fifo"])
def test_a_command_that_cannot_log_does_nothing(tmp_path: Path, log: str) -> None:
    write(tmp_path / "store", snapshots()[:2])
    path = Path(log) if log.startswith("/") else tmp_path / log
    if log == "directory":
        path.mkdir()
    elif log == "fifo":
        os.mkfifo(path)
    before = sorted(tmp_path.rglob("*"))
    for words in (
        ("restore", tmp_path / "store", "--to", tmp_path / "x.pt"), ("verify", tmp_path / "store"),
        ("store", "purge", tmp_path / "store", "--yes"),
        ("store", "rotate-key", tmp_path / "store", "--key-file", tmp_path / "key"),
    ):  # fmt: skip
        code, _ = run(*words, "--access-log", path)
        assert code == 2, words
        assert sorted(tmp_path.rglob("*")) == before


def test_a_command_logs_before_and_after(tmp_path: Path) -> None:
    write(tmp_path / "store", snapshots()[:2])
    log = tmp_path / "log"
    assert run("restore", tmp_path / "store", "--to", tmp_path / "x.pt", "--access-log", log)[0] == 0
    assert run("verify", "memory://u:p/S3CR3T@x?sig=S3CR3T", "--access-log", log)[0] == 2
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["result"] for line in lines] == ["BEGUN", "OK", "BEGUN", "StoreError"]
    assert SECRET not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_what_restore_writes_is_its_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "store", snapshots()[:2])
        (tmp_path / "a.pt").touch(0o644)
        mine = tmp_path / ".new-a.pt"
        mine.write_text("mine")
        for words in (["a.pt"], ["b.safetensors"], ["c", "--format", "point"], ["d", "--format", "dcp"]):
            target = tmp_path / words[0]
            assert run("restore", tmp_path / "store", "--to", target, *words[1:])[0] == 0
            for path in (target, *target.rglob("*")):
                assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
        assert mine.read_text() == "mine"
    finally:
        os.umask(before)
