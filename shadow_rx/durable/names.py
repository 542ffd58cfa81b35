"""Names in a store: ``<group>/epoch-0001/step-00000050/`` holds a base, ``…/log-00000001-00000001`` a log segment."""

from __future__ import annotations

import re

STORE_FILE = "store.json"
"""What marks a directory as a store."""
EPOCH_NAME = re.compile(r"epoch-(\d{4,})(\.old-\d+)?")
BASE_NAME = re.compile(r"step-(\d{8,})")
SEGMENT_NAME = re.compile(r"log-(\d{8,})-(\d{8,})")


def epoch_folder(group: str, epoch: int) -> str:
    """Return the folder of an epoch's objects."""
    return f"{group}/epoch-{epoch:04d}"


def base_name(step: int) -> str:
    """Return the name of a base within its epoch's folder."""
    return f"step-{step:08d}"


def segment_name(first: int, last: int) -> str:
    """Return the name of a log segment with these steps within its epoch's folder."""
    return f"log-{first:08d}-{last:08d}"
