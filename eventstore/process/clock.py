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
    from psycopg import Connection

    from eventstore.process.reacting import Reacting
    from eventstore.subscription import Subscription

_AT_ONCE: Final = 100
"""Timers before events have their turn again."""

# The process is what is locked: its events may set and cancel timers, and lock it as well. Another
# runner takes the next one. The timer itself may have gone meanwhile, so it is deleted as seen.
_DUE: Final = (
    "SELECT t.process_id, t.name, t.due_at, t.fires_at, t.attempts"
    " FROM eventstore.timers AS t"
    " JOIN eventstore.processes AS p USING (tenant, manager, process_id)"
    " WHERE t.tenant = %s AND t.manager = %s AND t.fires_at <= clock_timestamp()"
    " ORDER BY t.fires_at LIMIT 1 FOR UPDATE OF p SKIP LOCKED"
)
# Its reaction needed what no program knew then.
_UNKNOWN: Final = (
    "SELECT process_id, name FROM eventstore.timers"
    " WHERE tenant = %s AND manager = %s AND fires_at = 'infinity' AND error_code = %s"
)
# as text: the driver has no such instant
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
    """The chore of a process manager's runner. Any number of runners may have one."""

    def __init__(self, subscription: Subscription, reacting: Reacting) -> None:
        self._subscription = subscription
        self._reacting = reacting
        self._scope = (subscription.owner, subscription.name)
        self._began = False

    def run(self, connection: Connection[Any]) -> float | None:
        """Fires what is due; returns the seconds until the next is, None if none is set."""
        if not self._began:
            self._fire_unknown(connection)
            self._began = True
        for _ in range(_AT_ONCE):
            if not self._fire(connection, _DUE, self._scope):
                break
        row: Any = connection.execute(_NEXT, self._scope).fetchone()
        return None if row[0] is None else float(row[0])

    def _fire_unknown(self, connection: Connection[Any]) -> None:
        """Fires what was parked as undeclared once more: this program may declare it."""
        asked = (*self._scope, UndeclaredError.code)
        for timer in connection.execute(_UNKNOWN, asked).fetchall():
            self._fire(connection, _ONE, (*self._scope, *timer))

    def _fire(self, connection: Connection[Any], which: str, asked: tuple[Any, ...]) -> bool:
        """Fires one timer; returns whether there was one."""
        failures: list[tuple[tuple[Any, ...], Failure]] = []
        with connection.transaction():
            row = connection.execute(which, asked).fetchone()
            if row is None:
                return False
            process_id, name, due_at, fires_at, attempts = row
            timer = (*self._scope, process_id, name, due_at)
            if connection.execute(_FIRE, (*timer, fires_at)).rowcount == 0:
                return True
            try:
                self._reacting.take_timeout(process_id, TimedOut(name, due_at), connection)
            except Exception as error:
                if self._passing(connection, error):
                    raise
                failure = Failure.of(error, attempts + 1, self._subscription.retry)
                failures.append((timer, failure))
                raise psycopg.Rollback from None
        for timer, failure in failures:
            self._put_off(connection, timer, failure)
        return True

    def _passing(self, connection: Connection[Any], error: Exception) -> bool:
        lost = connection.closed or connection.broken
        return lost or isinstance(error, (*CONTENTION, ContentionError))

    def _put_off(
        self, connection: Connection[Any], timer: tuple[Any, ...], failure: Failure
    ) -> None:
        wait_s = failure.wait_s(self._subscription.retry)
        kept = (failure.attempts, failure.error_code, failure.error_type, failure.error_location)
        connection.execute(_FAILED, (*kept, wait_s, *timer))
        _, _, process_id, name, _ = timer
        report(
            self._subscription,
            failure,
            wait_s,
            first=failure.attempts == 1,
            process_id=process_id,
            timer=name,
        )
