"""How tests wait: they look for a signal or an answer until it is there, and a deadline ends that.

It is the only module of the tests that sleeps; ``tests/unit/house/test_house.py`` holds it to that.
"""

from __future__ import annotations

import inspect
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LONG_S: Final = 180.0
"""Seconds that a start, a rebuild or a recovery may take on a busy machine."""
_FIRST_PAUSE_S: Final = 0.005
_LAST_VALUE_MAX: Final = 2000
"""Characters of the value that is shown."""


def wait_until(
    look: Callable[[], T],
    what: str | Callable[[], str] = "",
    *,
    accept: Callable[[T], object] = bool,
    timeout_s: float = 60.0,
    pause_s: float = 0.1,
) -> T:
    """Looks again and again until what it sees is accepted.

    It looks once more after the deadline, so that a test whose processor was taken away does not
    fail for what has long been there.

    Args:
        look: Returns what there is now; what it raises ends the wait.
        what: What is awaited, or how things are: for the message. By default the text of `look`.
        accept: Whether that is enough; by default anything true is.
        timeout_s: Seconds after which the wait fails.
        pause_s: The longest pause between two looks; the first ones are shorter.

    Returns:
        The first value that is accepted.

    Raises:
        AssertionError: None was in time; says what was awaited and which value came last.
    """
    deadline = time.monotonic() + timeout_s
    pause = min(_FIRST_PAUSE_S, pause_s)
    while True:
        late = time.monotonic() >= deadline
        seen = look()
        if accept(seen):
            return seen
        if late:
            raise AssertionError(_in_vain(look, what, timeout_s, seen))
        time.sleep(pause)
        pause = min(pause * 1.5, pause_s)


def stays_so(
    look: Callable[[], T],
    *,
    accept: Callable[[T], object] = bool,
    for_s: float,
    pause_s: float = 0.1,
) -> None:
    """Looks for so many seconds, and accepts everything that it sees.

    Raises:
        AssertionError: Something is not accepted; says what.
    """
    end = time.monotonic() + for_s
    while True:
        late = time.monotonic() >= end
        seen = look()
        assert accept(seen), f"it does not stay so: {_text_of(look)}; seen: {seen!r}"
        if late:
            return
        time.sleep(pause_s)


def take_time(for_s: float) -> None:
    """Does nothing for so many seconds: work that takes its time, not a wait for anything."""
    end = time.monotonic() + for_s
    while (left_s := end - time.monotonic()) > 0:
        time.sleep(left_s)


def _in_vain(
    look: Callable[[], object], what: str | Callable[[], str], timeout_s: float, seen: object
) -> str:
    awaited = (what if isinstance(what, str) else what()) or _text_of(look)
    return f"not within {timeout_s:g} s: {awaited}; last seen: {seen!r:.{_LAST_VALUE_MAX}}"


def _text_of(look: Callable[[], object]) -> str:
    """The lines that `look` is written in, or its name where there are none."""
    try:
        lines, _ = inspect.getsourcelines(look)
    except (OSError, TypeError):
        return repr(look)
    return " ".join(line.strip() for line in lines)
