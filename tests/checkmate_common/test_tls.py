"""Credentials from files, the identities in them, and the options that name them."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from checkmate_common.tls import Identity, Role, TlsError, TlsFiles, load, parse_identity, server_name
from checkmate_common.tls.identity import identity_of
from checkmate_common.tls.options import TlsOptions, add_tls_options, tls_options
from tests.tls_tools import TestCertificates, rank

NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,31}", fullmatch=True)
IDENTITIES = st.one_of(
    st.builds(Identity, st.sampled_from([Role.RANK, Role.SHADOW]), NAMES, NAMES),
    st.builds(Identity, st.just(Role.OPERATOR), NAMES),
    st.builds(Identity, st.sampled_from([Role.OPERATOR, Role.CONTROLLER])),
    st.builds(Identity, st.just(Role.SWITCH), st.none(), NAMES),
)


@given(IDENTITIES)
def test_an_identity_is_read_back_from_its_uri(identity: Identity) -> None:
    assert parse_identity(identity.uri) == identity


@given(IDENTITIES, IDENTITIES)
def test_identities_have_uris_of_their_own(one: Identity, other: Identity) -> None:
    assert (one.uri == other.uri) is (one == other)


@pytest.mark.parametrize(
    "uri",
    [
        "", "r0", "spiffe://", "spiffe://checkmate", "spiffe://checkmate/", "spiffe:///operator",
        "https://checkmate/operator", "spiffe://checkmate/operator/", "spiffe://checkmate/operator/x",
        "spiffe://checkmate/job/a/rank/r0/x", "spiffe://checkmate/job/a/rank/", "spiffe://checkmate/job//rank/r0",
        "spiffe://checkmate/job/a/controller", "spiffe://checkmate/rank/r0", "spiffe://checkmate/job/a/rank/r0\n",
        "spiffe://checkmate/job/a/rank/..", "spiffe://a b/operator", "SPIFFE://checkmate/operator",
    ],
)  # fmt: skip
def test_what_is_no_identity(uri: str) -> None:
    assert parse_identity(uri) is None


def test_a_certificate_with_two_identities_has_none() -> None:
    names = ["localhost", "spiffe://checkmate/operator"]
    assert identity_of(names) == Identity(Role.OPERATOR)
    assert identity_of([*names, "spiffe://checkmate/controller"]) is None
    assert identity_of(["localhost"]) is None


def test_names_of_servers() -> None:
    assert server_name(Role.SHADOW) == "shadow.checkmate"
    assert server_name(Role.SHADOW, "digits") == "shadow.digits.checkmate"


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    said = TestCertificates.make(tmp_path).options(rank("a", "r0"), "own")
    assert said.ca is not None
    assert said.cert is not None
    assert said.key is not None
    return TlsFiles(said.ca, said.cert, said.key)


def test_sound_files(files: TlsFiles) -> None:
    own = load(files, datetime.now(UTC))
    assert own.identity == rank("a", "r0")
    assert own.not_after > datetime.now(UTC)
    assert "PRIVATE" not in repr(own)


def complaint(files: TlsFiles, days: float = 0.0) -> tuple[str, str]:
    with pytest.raises(TlsError) as caught:
        load(files, datetime.now(UTC) + timedelta(days=days))
    assert str(caught.value) == f"{caught.value.file}: {caught.value.problem}"
    return Path(caught.value.file).name, caught.value.problem


@pytest.mark.parametrize("name", ["ca.pem", "own.pem", "own.key"])
def test_a_file_that_is_missing_or_holds_something_else(files: TlsFiles, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    for data in (b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        path.write_bytes(data)
        assert complaint(files)[0] == name
    path.unlink()
    assert complaint(files)[0] == name
    path.mkdir()
    assert complaint(files)[0] == name


def test_a_certificate_that_is_not_valid(files: TlsFiles, tmp_path: Path) -> None:
    assert complaint(files, days=2)[0] == "ca.pem"
    assert complaint(files, days=-2)[0] == "ca.pem"
    made = TestCertificates.make(tmp_path / "other")
    said = made.options(rank("a", "r0"), expired=True)
    assert said.cert is not None
    assert said.key is not None
    file, problem = complaint(TlsFiles(files.ca, said.cert, said.key))
    assert file == said.cert.name
    assert "CN=rank r0 of job a" in problem


def test_a_key_of_another_certificate(files: TlsFiles, tmp_path: Path) -> None:
    other = TestCertificates.make(tmp_path / "other").options(rank("a", "r0"))
    assert other.key is not None
    file, problem = complaint(TlsFiles(files.ca, files.cert, other.key))
    assert file == other.key.name
    assert str(files.cert) in problem


def test_a_key_with_a_password(files: TlsFiles) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"x")
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    files.key.write_bytes(key.private_bytes(*form))
    assert complaint(files)[0] == "own.key"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_key_that_is_open_to_others(files: TlsFiles, mode: int) -> None:
    files.key.chmod(mode)
    file, problem = complaint(files)
    assert file == "own.key"
    assert f"{mode:04o}" in problem
    assert "chmod 600" in problem
    allowed = TlsFiles(files.ca, files.cert, files.key, allow_open_key=True)
    assert load(allowed, datetime.now(UTC)).identity == rank("a", "r0")


def parse(*words: str, **environment: str) -> TlsOptions:
    parser = argparse.ArgumentParser()
    add_tls_options(parser)
    return tls_options(parser.parse_args(words), environment)


def test_options_and_environment() -> None:
    assert parse().files() is None
    words = ("--tls-ca", "a", "--tls-cert", "c", "--tls-key", "k", "--tls-server-name", "n", "--tls-allow-open-key")
    said = parse(*words)
    assert said.files() == TlsFiles(Path("a"), Path("c"), Path("k"), allow_open_key=True)
    assert said.server_name == "n"
    assert parse(*said.arguments()) == said
    variables = {"CHECKMATE_TLS_CA": "a", "CHECKMATE_TLS_CERT": "c", "CHECKMATE_TLS_KEY": "k"}
    assert parse(**variables).files() == TlsFiles(Path("a"), Path("c"), Path("k"))
    assert parse("--tls-key", "mine", **variables).files() == TlsFiles(Path("a"), Path("c"), Path("mine"))
    with pytest.raises(TlsError, match=r"--tls-cert and --tls-key: is missing"):
        parse("--tls-ca", "a").files()
