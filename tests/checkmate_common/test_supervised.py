"""A thread whose body raises anything at all is seen."""

from __future__ import annotations

import pytest

from checkmate_common.supervised import SupervisedThread


@pytest.mark.parametrize("error", [MemoryError("one bad moment"), SystemExit(3), KeyError("x"), OSError(28, "full")])
def test_whatever_ends_a_thread_is_told(error: BaseException, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, str]] = []

    def body() -> None:
        raise error

    thread = SupervisedThread("capture", body, lambda name, trouble: told.append((name, trouble)))
    thread.start()
    thread.join(10)
    assert not thread.alive
    assert thread.trouble is not None
    assert type(error).__name__ in thread.trouble
    assert told == [("capture", thread.trouble)]
    assert f"thread capture {thread.trouble}" in capfd.readouterr().err


def test_a_thread_that_returns_or_never_ran_has_no_trouble() -> None:
    thread = SupervisedThread("capture", lambda: None, lambda *_: pytest.fail("nothing died"))
    thread.join()
    assert not thread.started
    thread.start()
    thread.join(10)
    assert (thread.started, thread.alive, thread.trouble) == (True, False, None)
