"""JSON values of requests that have to survive the way into a manifest and back."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json, to_json

from shadow_rx.errors import invalid


def parse_json(text: str, field: str) -> Any:
    """Return the value of `text`, in which NaN and infinities are allowed.

    The value is written and read once more within some lists, as deep as it lies in a manifest, so that
    what could not be read back (lone surrogates, nesting beyond the reader's limit) is refused here and
    does not make a recovery point unreadable.

    Raises:
        ShadowError: not JSON, or a value that does not survive; `field` is named.
    """
    try:
        value = from_json(text)
        from_json(to_json([[[[[[[[value]]]]]]]], inf_nan_mode="constants"))
    except (ValueError, RecursionError) as error:
        raise invalid(field, f"is not JSON that can be stored: {error}") from error
    return value
