"""A thread whose failure is noticed: any exception of its body is kept, printed and reported to a callback."""

from __future__ import annotations

import contextlib
import sys
import threading
import traceback
from collections.abc import Callable

OnDeath = Callable[[str, str], None]
"""Called in the failed thread with its name and the error."""


class SupervisedThread:
    """A daemon thread that runs `body` once.

    Attributes:
        name: its task, in a word or two.
        trouble: the error that ended it; None while it runs or if its body returned.
    """

    def __init__(self, name: str, body: Callable[[], None], on_death: OnDeath | None = None) -> None:
        """Prepare the thread; `on_death` is called after an exception of `body` was printed."""
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
        """Whether it was started."""
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        """Whether the body is running."""
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Wait up to `timeout` seconds for the end of the body; return at once if it was never started."""
        if self.started:
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            self._body()
        except BaseException as error:  # including MemoryError and SystemExit
            self.trouble = f"ended by {type(error).__name__}: {error}"
            with contextlib.suppress(Exception):  # printing may fail for lack of memory
                print(f"thread {self.name} {self.trouble}", file=sys.stderr, flush=True)
                traceback.print_exception(error)
            if self._on_death is not None:
                self._on_death(self.name, self.trouble)
