"""A thread whose end is seen: whatever its body raises is kept, printed, and told to whoever has to know."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable

Told = Callable[[str, str], None]
"""Called, in the thread that ends, with its name and what ended it."""


class SupervisedThread:
    """A daemon thread that runs `body` once.

    Attributes:
        name: what it does, in a word or two.
        trouble: what ended it, None while it runs and when its body returned.
    """

    def __init__(self, name: str, body: Callable[[], None], on_death: Told | None = None) -> None:
        """Prepare the thread; `on_death` is called when `body` raises anything at all, after it was printed."""
        self.name = name
        self.trouble: str | None = None
        self._body = body
        self._on_death = on_death
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """Whether the body runs."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the body is over, at most `timeout` seconds; returns at once where it was never started."""
        if self.started:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # MemoryError and SystemExit end a thread, too
            self.trouble = f"ended by {type(error).__name__}: {error}"
            with contextlib.suppress(Exception):  # there may be no memory to print it with
                print(f"thread {self.name} {self.trouble}", file=sys.stderr, flush=True)
                traceback.print_exception(error)
            if self._on_death is not None:
                self._on_death(self.name, self.trouble)
