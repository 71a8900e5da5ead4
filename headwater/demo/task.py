"""Work in a background thread, whose result or error can be retrieved."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")


class Task(Generic[Result]):
    """Runs a function in a daemon thread, so that Ctrl-C never waits for it."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._found: list[Result] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def running(self) -> bool:
        """Whether the function is still running."""
        return self._thread.is_alive()

    def result(self) -> Result:
        """Waits for the function; returns its result or raises its error."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def _run(self) -> None:
        try:
            self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001  # raised again by `result`
            self._error = error
