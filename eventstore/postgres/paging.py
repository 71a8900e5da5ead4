"""Yields the events of a stream, and the events of the log page by page."""

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
    """Returns the events that a function returns; it is called immediately."""
    return iter(read(*words))


def pages(
    high_water_mark: Callable[[], int],
    ask: Callable[[Statement, str | None], Cursor[Any]],
    tenant: str | None,
    part: LogPart,
    size: int,
) -> Iterator[StoredEvent]:
    """Returns the events of a part of the log, up to the current high-water mark.

    Args:
        high_water_mark: Returns the high-water mark.
        ask: Executes a statement; returns a cursor with all rows in memory.
        tenant: Tenant of the events; None: all tenants that the role may see.
        part: The part of the log.
        size: Events per page.
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
    # While this thread decodes one page, a second thread fetches the next. A child forked meanwhile
    # has no second thread, and fetches each page when it needs it.
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
    """The rest of a read: `after < global position <= through`, at most `left` events."""

    after: int
    through: int
    left: int | None

    def page(self, size: int) -> int:
        """Returns the size of the next page; 0 if nothing is left."""
        if self.after >= self.through:
            return 0
        return size if self.left is None else min(size, self.left)

    def beyond(self, last: int, count: int, *, backwards: bool) -> _Bounds:
        """Returns the rest after a page of `count` events that ended at `last`."""
        left = None if self.left is None else self.left - count
        if backwards:
            return _Bounds(self.after, last - 1, left)
        return _Bounds(last, self.through, left)


def _last_position(page: Cursor[Any]) -> int:
    result = page.pgresult
    value = result.get_value(page.rowcount - 1, 0) if result else None
    return int.from_bytes(value or b"", "big")  # binary int8; positions are positive
