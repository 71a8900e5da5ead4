"""Runs the same work for many views, four at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_AT_A_TIME: Final = 4
"""As many connections as a client of the search engine has."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Calls a function for each item in several threads; returns the results in their order.

    Args:
        work: The function. Its first exception is raised; calls that have not begun are dropped.
        items: Its arguments.
    """
    wanted = list(items)
    if len(wanted) <= 1:
        return [work(item) for item in wanted]
    with ThreadPoolExecutor(min(_AT_A_TIME, len(wanted))) as pool:
        waiting = [pool.submit(work, item) for item in wanted]
        try:
            return [each.result() for each in waiting]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
