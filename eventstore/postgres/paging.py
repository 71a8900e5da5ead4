"""What an event log yields: the events of a stream, and of the log page by page."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from eventstore.model.event import StoredEvent
from eventstore.postgres import answer, statement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Cursor

    from eventstore.log import LogPart
    from eventstore.postgres.statement import Statement


def items(read: Callable[..., list[StoredEvent]], *words: Any) -> Iterator[StoredEvent]:
    """Returns the events that a function reads; it is called at once."""
    return iter(read(*words))


def pages(
    high_water_mark: Callable[[], int],
    ask: Callable[[Statement, str | None], Cursor[Any]],
    tenant: str | None,
    part: LogPart,
    size: int,
) -> Iterator[StoredEvent]:
    """Returns the events of a part of the log, up to where that is complete now.

    Args:
        high_water_mark: Returns up to where the log is complete.
        ask: Executes a statement; its answer is in memory.
        tenant: Whose events; None: all that the role may see.
        part: Which of them.
        size: Events of one page.
    """
    mark = high_water_mark()
    through = mark if part.through is None else min(mark, part.through)

    def page_of(bounds: _Bounds, limit: int) -> Cursor[Any]:
        asked = statement.read_log(
            tenant, part, after=bounds.after, through=bounds.through, limit=limit
        )
        return ask(asked, tenant)

    return _pages(page_of, tenant, part, _Bounds(part.after, through, part.limit), size)


def _pages(
    page_of: Callable[[_Bounds, int], Cursor[Any]],
    tenant: str | None,
    part: LogPart,
    bounds: _Bounds,
    size: int,
) -> Iterator[StoredEvent]:
    # While one page is turned into events here, the server prepares the next. A child that was
    # forked meanwhile has no thread that would, and goes on page by page.
    process = os.getpid()
    with ThreadPoolExecutor(1, thread_name_prefix="eventstore-read") as ahead:
        limit = bounds.page(size)
        page = page_of(bounds, limit) if limit else None
        while page is not None:
            following, full, asked = None, page.rowcount == limit, bounds
            if full:
                bounds = bounds.beyond(_last_position(page), limit, backwards=part.backwards)
                limit = bounds.page(size)
                if limit and process == os.getpid():
                    following = ahead.submit(page_of, bounds, limit)
            events = list(map(StoredEvent._make, page.fetchall()))
            yield from answer.of_range(events, tenant, asked.after, asked.through)
            if not full or not limit:
                return
            if following is None or process != os.getpid():
                page = page_of(bounds, limit)
            else:
                page = following.result()


class _Bounds(NamedTuple):
    """What is left to read of the log: `after < global position <= through`, `left` at most."""

    after: int
    through: int
    left: int | None

    def page(self, size: int) -> int:
        """Size of the next page; 0 if nothing is left."""
        if self.after >= self.through:
            return 0
        return size if self.left is None else min(size, self.left)

    def beyond(self, last: int, count: int, *, backwards: bool) -> _Bounds:
        """What is left after a page of `count` events that ended at `last`."""
        left = None if self.left is None else self.left - count
        if backwards:
            return _Bounds(self.after, last - 1, left)
        return _Bounds(last, self.through, left)


def _last_position(page: Cursor[Any]) -> int:
    result = page.pgresult
    value = result.get_value(page.rowcount - 1, 0) if result else None
    return int.from_bytes(value or b"", "big")  # binary int8; positions are positive
