"""Names in a store: ``<group>/epoch-0001/step-00000050/`` holds a base, ``…/log-00000001-00000001`` a log segment.

What has another name is not the store's: it is neither read, moved nor removed, wherever it lies. Numbers are written
in one way only, so that no two names mean the same object.
"""

from __future__ import annotations

import re

from checkmate_common.fields import NAME_PATTERN
from checkmate_common.recovery.point import MANIFEST_FILE, STATE_FILE
from jobspec.store import MAX_EVERY

STORE_FILE = "store.json"
"""What marks a directory as a store."""
SEALED_SUFFIX = ".enc"
"""End of the names of encrypted objects."""
BASE_FILES = (STATE_FILE, MANIFEST_FILE)
"""The objects of a base, in the order of writing; the last one marks it complete."""
MAX_NUMBER = (1 << 63) - 1
"""Largest step or epoch."""
Point = tuple[str, int, int]
"""Group, epoch and step of a recovery point."""
_UNFINISHED, _DISCARDED = ".new-", ".old-"
_GROUP = re.compile(NAME_PATTERN)
_EPOCH = re.compile(r"epoch-([0-9]{4,19})(\.old-[1-9][0-9]{0,8})?")
_BASE = re.compile(r"step-([0-9]{8,19})")
_SEGMENT = re.compile(r"log-([0-9]{8,19})-([0-9]{8,19})")


def epoch_folder(group: str, epoch: int) -> str:
    """Return the folder of an epoch's objects."""
    return f"{group}/{_epoch_name(epoch)}"


def _epoch_name(epoch: int) -> str:
    return f"epoch-{epoch:04d}"


def base_name(step: int) -> str:
    """Return the name of a base within its epoch's folder."""
    return f"step-{step:08d}"


def segment_name(first: int, last: int) -> str:
    """Return the name of a log segment with these steps within its epoch's folder."""
    return f"log-{first:08d}-{last:08d}"


def unfinished(name: str) -> str:
    """Return the name under which a file is written before it gets the name `name`."""
    return f"{_UNFINISHED}{name}"


def is_group(name: str) -> bool:
    """Tell whether a DP group can have this name."""
    return _GROUP.fullmatch(name) is not None


def parse_epoch(name: str) -> tuple[int, bool] | None:
    """Return the epoch whose folder has this name, and whether a later run has replaced it; None: not an epoch's."""
    match = _EPOCH.fullmatch(name)
    if match is None or (epoch := int(match[1])) > MAX_NUMBER or _epoch_name(epoch) + (match[2] or "") != name:
        return None
    return epoch, match[2] is not None


def parse_base(name: str) -> int | None:
    """Return the step whose base has this name; None: not a base's."""
    match = _BASE.fullmatch(name)
    if match is None or (step := int(match[1])) > MAX_NUMBER or base_name(step) != name:
        return None
    return step


def parse_segment(name: str) -> tuple[int, int] | None:
    """Return first and last step of the log segment with this name; None: not a segment's."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    first, last = int(match[1]), int(match[2])
    if not first <= last <= MAX_NUMBER or last - first >= MAX_EVERY or segment_name(first, last) != name:
        return None
    return first, last


def is_object(name: str) -> bool:
    """Tell whether an object of a store, encrypted or not, has this name in the store."""
    if name == STORE_FILE:
        return True
    group, *rest = name.removesuffix(SEALED_SUFFIX).split("/")
    if not is_group(group) or not rest or parse_epoch(rest[0]) is None:
        return False
    return _is_member(*rest[1:])


def _is_member(*rest: str) -> bool:
    """Tell whether an object of an epoch has this name in the epoch's folder."""
    match rest:
        case (name,):
            return parse_segment(name) is not None
        case (folder, name):
            return parse_base(folder) is not None and name in BASE_FILES
    return False


def is_leftover(name: str) -> bool:
    """Tell whether this is what a writer that died left unfinished, or half removed, of an object or a base."""
    folder, _, last = name.rpartition("/")
    for prefix in (_UNFINISHED, _DISCARDED):
        if last.startswith(prefix):
            whole = f"{folder}/{last.removeprefix(prefix)}" if folder else last.removeprefix(prefix)
            return is_object(whole) or is_object(f"{whole}/{MANIFEST_FILE}")
    return False


def marker_first(name: str) -> tuple[str, bool, str]:
    """Order names so that what marks a base complete comes before the rest of it: the order of removal."""
    folder, _, last = name.rpartition("/")
    return folder, last.removesuffix(SEALED_SUFFIX) != MANIFEST_FILE, last
