"""`checkmate certs`: what it makes, and what it does not touch."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkmate.cli import app
from checkmate_common.tls import Role, TlsError
from jobspec.certificates import LIST_FILE, CertificateSet, make_certificates, parties
from jobspec.loader import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"
NOW = datetime.now(UTC)


def test_everybody_gets_what_can_be_loaded(tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "two-shadows.yaml")
    made = make_certificates(tmp_path / "c", [job], NOW, hosts=["shadow.example.org", "10.1.2.3"])
    assert made == parties([job])
    assert {identity.role for identity in made} == set(Role)
    files = CertificateSet(tmp_path / "c")
    for identity in made:
        own = files.options(identity).credentials()
        assert own is not None
        assert own.identity == identity
        assert (own.files.key.stat().st_mode & 0o777) == 0o600
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0


def test_nothing_is_replaced_unless_told_and_nothing_of_others_ever(tmp_path: Path) -> None:
    job = load_job(EXAMPLES / "digits.yaml")
    folder = tmp_path / "c"
    make_certificates(folder, [job], NOW)
    before = (folder / "ca.pem").read_bytes()
    with pytest.raises(TlsError, match="holds certificates already"):
        make_certificates(folder, [job], NOW)
    assert (folder / "ca.pem").read_bytes() == before
    mine = folder / "mine.key"
    mine.write_text("mine")
    make_certificates(folder, [job], NOW, force=True)
    assert (folder / "ca.pem").read_bytes() != before
    assert mine.read_text() == "mine"
    for path in (folder / LIST_FILE, tmp_path / "x"):
        path.write_text(json.dumps({"files": ["../x"]}))
    with pytest.raises(TlsError, match="was not made by an earlier run"):
        make_certificates(folder, [job], NOW, force=True)
    assert (tmp_path / "x").exists(), "a list that was tampered with reaches nothing outside"
    os.mkfifo(folder / LIST_FILE)
    with pytest.raises(TlsError, match="not the list of an earlier run"):
        make_certificates(folder, [job], NOW, force=True)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "ca.pem").write_text("mine")
    for _ in range(2):
        with pytest.raises(TlsError, match=r"ca\.pem: is there and was not made"):
            make_certificates(foreign, [job], NOW, force=True)
    assert (foreign / "ca.pem").read_text() == "mine"
    assert [path.name for path in foreign.iterdir()] == ["ca.pem"]


def test_the_command(tmp_path: Path) -> None:
    words = ["certs", str(tmp_path / "c"), "--job", str(EXAMPLES / "digits.yaml"), "--days", "3"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert "They are for tests" in done.output
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2
    assert "holds certificates already" in again.output
    forced = CliRunner().invoke(app, [*words, "--force", "--json"])
    assert forced.exit_code == 0
    told = json.loads(forced.output)
    assert told["for_tests_only"] is True
    assert "spiffe://checkmate/job/digits/rank/r0" in [row["identity"] for row in told["certificates"]]
    assert all(Path(row["key"]).exists() for row in told["certificates"])
