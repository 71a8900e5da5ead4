"""Journal: the stored inputs and timers of one process, within the open transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from eventstore.model.event import StoredEvent
from eventstore.process.reaction import CommandRejected, TimedOut

if TYPE_CHECKING:
    from datetime import datetime

    from eventstore.process.reaction import Schedule
    from eventstore.subscription.session import RunnerSession

# locks the row whether or not it has to be created
_LOCK: Final = (
    "INSERT INTO eventstore.processes AS p (tenant, manager, process_id) VALUES (%s, %s, %s)"
    " ON CONFLICT (tenant, manager, process_id) DO UPDATE SET inputs = p.inputs"
    " RETURNING completed_at IS NOT NULL"
)
_NEXT: Final = (
    "UPDATE eventstore.processes SET inputs = inputs + 1"
    " WHERE tenant = %s AND manager = %s AND process_id = %s RETURNING inputs"
)
_KNOWN: Final = (
    "SELECT FROM eventstore.process_inputs WHERE tenant = %s AND manager = %s AND process_id = %s"
    " AND global_position = %s"
)
_TAKE: Final = (
    "INSERT INTO eventstore.process_inputs"
    " (tenant, manager, process_id, number, kind, global_position, name, reason, at)"
    " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
)
_INPUTS: Final = (
    "SELECT kind, global_position, name, reason, at FROM eventstore.process_inputs"
    " WHERE tenant = %s AND manager = %s AND process_id = %s ORDER BY number"
)
_EVENTS: Final = (
    f"SELECT {', '.join(StoredEvent._fields)} FROM eventstore.log"  # noqa: S608
    " WHERE tenant = %s AND global_position = ANY (%s)"
)
_SCHEDULE: Final = (
    "INSERT INTO eventstore.timers (tenant, manager, process_id, name, due_at, fires_at)"
    " SELECT %s, %s, %s, %s, due, due"
    "   FROM (SELECT coalesce(%s::timestamptz, clock_timestamp() + %s::interval) AS due) AS t"
    " ON CONFLICT (tenant, manager, process_id, name) DO UPDATE"
    " SET due_at = excluded.due_at, fires_at = excluded.fires_at, attempts = 0,"
    "     error_code = NULL, error_type = NULL, error_location = NULL"
)
_CANCEL: Final = (
    "DELETE FROM eventstore.timers"
    " WHERE tenant = %s AND manager = %s AND process_id = %s AND name = %s"
)
_COMPLETE: Final = (
    "WITH cancelled AS (DELETE FROM eventstore.timers"
    "  WHERE tenant = %(tenant)s AND manager = %(manager)s AND process_id = %(process)s)"
    " UPDATE eventstore.processes SET completed_at = clock_timestamp()"
    "  WHERE tenant = %(tenant)s AND manager = %(manager)s AND process_id = %(process)s"
)


class Process(NamedTuple):
    """Identity of one process."""

    tenant: str
    manager: str
    process_id: str


class Journal:
    """Reads and writes the stored state of one process. Call `lock` first: it locks the row."""

    def __init__(self, session: RunnerSession, process: Process) -> None:
        self._session = session
        self._process = process

    async def lock(self) -> bool:
        """Locks the process until the transaction ends; returns whether it is completed."""
        return bool(await self._session.value(_LOCK, self._process))

    async def knows(self, global_position: int) -> bool:
        """Returns whether an event was taken in before."""
        asked = (*self._process, global_position)
        return await self._session.row(_KNOWN, asked) is not None

    async def take_event(self, global_position: int) -> int:
        """Takes in an event; returns the number of the input."""
        return await self._take("event", global_position, None, None, None)

    async def take_timed_out(self, timed_out: TimedOut) -> int:
        """Takes in a timeout; returns the number of the input."""
        return await self._take("timeout", None, timed_out.name, None, timed_out.due_at)

    async def take_refusal(self, refusal: CommandRejected) -> int:
        """Takes in a refusal; returns the number of the input."""
        return await self._take("refusal", None, refusal.command, refusal.reason, None)

    async def inputs(self) -> list[Any]:
        """Returns all inputs of the process, oldest first; events in their stored form."""
        rows = await self._session.events(_INPUTS, self._process)
        events = await self._events([row[1] for row in rows if row[1] is not None])
        return [_input(row, events) for row in rows]

    async def schedule(self, timer: Schedule) -> None:
        """Sets a timer."""
        await self._session.change(_SCHEDULE, (*self._process, timer.name, timer.at, timer.after))

    async def cancel(self, name: str) -> bool:
        """Cancels a timer; returns whether it existed."""
        return await self._session.change(_CANCEL, (*self._process, name)) > 0

    async def complete(self) -> None:
        """Ends the process."""
        tenant, manager, process_id = self._process
        await self._session.change(
            _COMPLETE, {"tenant": tenant, "manager": manager, "process": process_id}
        )

    async def _take(
        self,
        kind: str,
        global_position: int | None,
        name: str | None,
        reason: str | None,
        at: datetime | None,
    ) -> int:
        number = int(await self._session.value(_NEXT, self._process))
        await self._session.change(
            _TAKE, (*self._process, number, kind, global_position, name, reason, at)
        )
        return number

    async def _events(self, positions: list[int]) -> dict[int, StoredEvent]:
        found = await self._session.events(_EVENTS, (self._process.tenant, positions))
        events = map(StoredEvent._make, found)
        return {event.global_position: event for event in events}


def _input(row: tuple[Any, ...], events: dict[int, StoredEvent]) -> Any:
    kind, position, name, reason, at = row
    if kind == "event":
        return events[position]
    return TimedOut(name, at) if kind == "timeout" else CommandRejected(name, reason)
