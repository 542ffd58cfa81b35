"""Texts as they may be shown: without the secrets of URLs, and without what a terminal would take for commands."""

from __future__ import annotations

import re

_NO_PLACE = re.compile(r"[?#;&=].*", re.DOTALL)
_MOST = 1000


def redacted(text: str) -> str:
    """Return `text` without what a URL in it may keep secret: user, password, query, fragment.

    Passwords hold what they like (``/``, ``@``, ``:``, spaces), so everything from the first ``://`` to the last ``@``
    goes, and everything from the first ``?``, ``#``, ``;``, ``&`` or ``=`` after it. Where one of those comes before
    the ``@``, which may then belong to a query, all goes. A text without ``://`` is returned as it is.
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    secret, at, place = rest.rpartition("@")
    if _NO_PLACE.search(secret):
        return f"{scheme}{mark}..."
    return f"{scheme}{mark}{'...@' if at else ''}{_NO_PLACE.sub('...', place)}"


def shown(text: str) -> str:
    """Return `text` on one line, with escapes for what is not printable, and not too long."""
    line = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return f"{line[:_MOST]}..." if len(line) > _MOST else line
