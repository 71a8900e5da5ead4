"""Yields the events of a stream, and the events of the log page by page, for asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventstore.model.event import StoredEvent
from eventstore.postgres import answer, statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from psycopg import AsyncCursor

    from eventstore.log import LogPart
    from eventstore.postgres.statement import Statement


async def items(
    read: Callable[..., Awaitable[list[StoredEvent]]], *words: Any
) -> AsyncIterator[StoredEvent]:
    """Yields the events that a function returns; the first iteration calls it."""
    for event in await read(*words):
        yield event


async def pages(
    high_water_mark: Callable[[], Awaitable[int]],
    ask: Callable[[Statement, str | None], Awaitable[AsyncCursor[Any]]],
    tenant: str | None,
    part: LogPart,
    size: int,
) -> AsyncIterator[StoredEvent]:
    """Yields the events of a part of the log.

    Args:
        high_water_mark: Returns the high-water mark.
        ask: Executes a statement.
        tenant: Tenant of the events; None: all tenants that the role may see.
        part: The part of the log.
        size: Events per page.
    """
    mark = await high_water_mark()
    after, left = part.after, part.limit
    through = mark if part.through is None else min(mark, part.through)
    while after < through and (left is None or left > 0):
        limit = size if left is None else min(size, left)
        asked = statement.read_log(tenant, part, after=after, through=through, limit=limit)
        rows = await (await ask(asked, tenant)).fetchall()
        page = answer.of_range(list(map(StoredEvent._make, rows)), tenant, after, through)
        for event in page:
            yield event
        if len(page) < limit:
            return
        left = None if left is None else left - len(page)
        if part.backwards:
            through = page[-1].global_position - 1
        else:
            after = page[-1].global_position
