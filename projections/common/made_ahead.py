"""Makes the next of some items while its user is at work with the one before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

Item = TypeVar("Item")


def made_ahead(items: Iterator[Item]) -> Generator[Item, None, None]:
    """Yields items in their order; a thread makes one ahead.

    Args:
        items: The items. If it raises, so does this, after the items before.
    """
    end = object()
    with ThreadPoolExecutor(1, "ahead") as pool:
        following = pool.submit(next, items, end)
        while (item := following.result()) is not end:
            following = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # it is not the end
