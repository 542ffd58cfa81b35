"""SHA-256 of large data in parallel with other work: hashing releases the interpreter lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager


def sha256_hex(parts: Iterable[bytes | memoryview]) -> str:
    """Return the SHA-256 of the concatenated `parts` as hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


@contextmanager
def hashing(parts: Iterable[bytes | memoryview]) -> Iterator[Future[str]]:
    """Compute `sha256_hex` in a thread while the body of the ``with`` statement runs; leaving it waits for the end."""
    with ThreadPoolExecutor(1, thread_name_prefix="sha256") as executor:
        yield executor.submit(sha256_hex, parts)
