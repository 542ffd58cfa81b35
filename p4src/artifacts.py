"""The committed, compiled data plane: BMv2 JSON and P4Info."""

from __future__ import annotations

import hashlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
BUILD = ROOT / "build"
CONFIG_FILE = "checkmate.json"
P4INFO_FILE = "checkmate.p4info.txtpb"
DIGEST_FILE = "sources.sha256"
COMPILER_FILE = "p4c.version"


def device_config() -> bytes:
    """Return the BMv2 JSON, the device config that P4Runtime pushes to software switches."""
    return (BUILD / CONFIG_FILE).read_bytes()


def p4info_text() -> str:
    """Return the P4Info as protobuf text."""
    return (BUILD / P4INFO_FILE).read_text()


def digest_of(root: Path, *patterns: str) -> str:
    """Return the SHA-256 over names and contents of the files below `root` that fit one of `patterns`."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
