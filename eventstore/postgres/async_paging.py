"""What an event log for asyncio yields: the events of a stream, and of the log page by page."""

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
    """Yields the events that a function reads; it is called at the first of them."""
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
        high_water_mark: Returns up to where the log is complete.
        ask: Executes a statement.
        tenant: Whose events; None: all that the role may see.
        part: Which of them.
        size: Events of one page.
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
