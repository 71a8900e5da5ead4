"""The same for many views, a few at a time: a store answers one while it works on another."""

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
    """Returns what comes of each, in their order.

    Args:
        work: Done in several threads; what it raises first ends the rest that has not begun.
        items: What it is done with.
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
