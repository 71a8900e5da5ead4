"""Clock: fires the timers of one process manager, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from eventstore.errors import ContentionError, UndeclaredError
from eventstore.postgres.errors import CONTENTION
from eventstore.process.reaction import TimedOut
from eventstore.subscription.reporting import report
from eventstore.subscription.retry import Failure

if TYPE_CHECKING:
    from eventstore.process.reacting import Reacting
    from eventstore.subscription import Subscription
    from eventstore.subscription.session import RunnerSession

_AT_ONCE: Final = 100
"""Timers fired in a row before the runner delivers events again."""

# The lock is on the process, not on the timer: handling an event of the process may set and cancel
# timers, and takes the same lock. SKIP LOCKED leaves other processes to other runners. The timer
# may have been cancelled before the lock was taken, so _FIRE deletes it only if it is unchanged.
_DUE: Final = (
    "SELECT t.process_id, t.name, t.due_at, t.fires_at, t.attempts"
    " FROM eventstore.timers AS t"
    " JOIN eventstore.processes AS p USING (tenant, manager, process_id)"
    " WHERE t.tenant = %s AND t.manager = %s AND t.fires_at <= clock_timestamp()"
    " ORDER BY t.fires_at LIMIT 1 FOR UPDATE OF p SKIP LOCKED"
)
# Timers parked because their reaction needed an event type that the program did not declare.
_UNKNOWN: Final = (
    "SELECT process_id, name FROM eventstore.timers"
    " WHERE tenant = %s AND manager = %s AND fires_at = 'infinity' AND error_code = %s"
)
# fires_at as text: psycopg cannot represent 'infinity'
_ONE: Final = (
    "SELECT t.process_id, t.name, t.due_at, t.fires_at::text, 0"
    " FROM eventstore.timers AS t"
    " JOIN eventstore.processes AS p USING (tenant, manager, process_id)"
    " WHERE t.tenant = %s AND t.manager = %s AND t.process_id = %s AND t.name = %s"
    " AND t.fires_at = 'infinity' FOR UPDATE OF p SKIP LOCKED"
)
_FIRE: Final = (
    "DELETE FROM eventstore.timers WHERE tenant = %s AND manager = %s AND process_id = %s"
    " AND name = %s AND due_at = %s AND fires_at = %s"
)
_FAILED: Final = (
    "UPDATE eventstore.timers SET attempts = %s, error_code = %s, error_type = %s,"
    " error_location = %s,"
    " fires_at = coalesce(clock_timestamp() + %s::double precision * interval '1 second',"
    "                     'infinity')"
    " WHERE tenant = %s AND manager = %s AND process_id = %s AND name = %s AND due_at = %s"
)
_NEXT: Final = (
    "SELECT extract(epoch FROM min(fires_at) - clock_timestamp())::double precision"
    " FROM eventstore.timers WHERE tenant = %s AND manager = %s AND fires_at < 'infinity'"
)


class Clock:
    """The timers of a process manager's runner. Several runners may fire timers concurrently."""

    def __init__(self, subscription: Subscription, reacting: Reacting) -> None:
        self._subscription = subscription
        self._reacting = reacting
        self._scope = (subscription.owner, subscription.name)
        self._began = False

    async def run(self, session: RunnerSession) -> float | None:
        """Fires due timers; returns the seconds until the next one is due, None without one."""
        if not self._began:
            await self._fire_unknown(session)
            self._began = True
        for _ in range(_AT_ONCE):
            if not await self._fire(session, _DUE, self._scope):
                break
        row: Any = await session.row(_NEXT, self._scope)
        return None if row[0] is None else float(row[0])

    async def _fire_unknown(self, session: RunnerSession) -> None:
        """Fires timers parked for an undeclared type again: this program may declare the type."""
        asked = (*self._scope, UndeclaredError.code)
        for timer in await session.rows(_UNKNOWN, asked):
            await self._fire(session, _ONE, (*self._scope, *timer))

    async def _fire(self, session: RunnerSession, which: str, asked: tuple[Any, ...]) -> bool:
        """Fires one timer; returns whether there was one."""
        failures: list[tuple[tuple[Any, ...], Failure]] = []
        async with session.transaction():
            found = await session.events(which, asked)
            if not found:
                return False
            process_id, name, due_at, fires_at, attempts = found[0]
            timer = (*self._scope, process_id, name, due_at)
            if await session.change(_FIRE, (*timer, fires_at)) == 0:
                return True
            try:
                await self._reacting.take_timed_out(process_id, TimedOut(name, due_at), session)
            except Exception as error:
                if self._passing(session, error):
                    raise
                failure = Failure.of(error, attempts + 1, self._subscription.retry)
                failures.append((timer, failure))
                raise psycopg.Rollback from None
        for timer, failure in failures:
            await self._put_off(session, timer, failure)
        return True

    def _passing(self, session: RunnerSession, error: Exception) -> bool:
        return session.lost or isinstance(error, (*CONTENTION, ContentionError))

    async def _put_off(
        self, session: RunnerSession, timer: tuple[Any, ...], failure: Failure
    ) -> None:
        wait_s = failure.wait_s(self._subscription.retry)
        kept = (failure.attempts, failure.error_code, failure.error_type, failure.error_location)
        await session.change(_FAILED, (*kept, wait_s, *timer))
        _, _, process_id, name, _ = timer
        await report(
            session,
            self._subscription,
            failure,
            wait_s,
            first=failure.attempts == 1,
            process_id=process_id,
            timer=name,
        )
