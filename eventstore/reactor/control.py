"""Reactors: lists, pauses and resumes reactors, for operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg.rows import class_row

from eventstore.errors import SubscriptionError
from eventstore.subscription.control import LAG_EVENTS_MAX, Subscriptions

if TYPE_CHECKING:
    from datetime import datetime

_LIST: Final = (
    "SELECT s.name,"
    " CASE WHEN s.paused_at IS NOT NULL THEN 'paused'"
    "      WHEN NOT EXISTS (SELECT FROM eventstore.partition_owners AS o"
    "        WHERE o.tenant = s.tenant AND o.name = s.name AND o.owner IS NOT NULL) THEN 'stopped'"
    "      WHEN s.breaker_opened_at IS NOT NULL THEN 'waiting' ELSE 'running' END AS state,"
    " (SELECT min(p.global_position) FROM eventstore.subscriptions AS p"
    "   WHERE p.tenant = s.tenant AND p.name = s.name) AS global_position,"
    " (SELECT count(*) FROM eventstore.subscriptions AS p, LATERAL ("
    "    SELECT FROM eventstore.log AS e"
    "     WHERE e.tenant = p.tenant AND e.global_position > p.global_position"
    "       AND eventstore.partition_of(e.tenant, e.stream, p.partitions) = p.partition"
    "     LIMIT %s) AS ahead"
    "   WHERE p.tenant = s.tenant AND p.name = s.name) AS projection_lag_events,"
    " (SELECT count(*) FROM eventstore.parked_events AS e WHERE e.tenant = s.tenant"
    "     AND e.subscription = s.name AND e.state = 'retrying') AS retrying_streams,"
    " (SELECT count(*) FROM eventstore.parked_events AS e WHERE e.tenant = s.tenant"
    "     AND e.subscription = s.name AND e.state = 'parked') AS parked_streams,"
    " s.paused_at, s.breaker_opened_at, s.breaker_error"
    " FROM eventstore.subscriptions AS s"
    " WHERE s.tenant = %s AND s.partition = 0 AND s.reactor ORDER BY s.name"
)
_PAUSE: Final = "SELECT eventstore.pause_reactor(%s, %s, %s)"


@dataclass(frozen=True, slots=True)
class ReactorStatus:
    """The status of a reactor.

    Attributes:
        name: Its name.
        state: `running`; `waiting` for an unavailable dependency; `paused` by an operator; or
            `stopped`, if no process runs it.
        global_position: All events up to this position have had their effects, or are parked.
        projection_lag_events: Events of its streams after its checkpoint, whether or not they match
            the query; counted up to `LAG_EVENTS_MAX` in each partition.
        retrying_streams: Streams with a failed effect that is retried automatically.
        parked_streams: Streams that wait for an operator's decision.
        paused_at: When it was paused; None if it is not.
        breaker_opened_at: When the breaker opened, as recorded by a process whose breaker is open;
            None if it is closed.
        breaker_error: Class of the error that opened the breaker.
    """

    name: str
    state: str
    global_position: int
    projection_lag_events: int
    retrying_streams: int
    parked_streams: int
    paused_at: datetime | None
    breaker_opened_at: datetime | None
    breaker_error: str | None


class Reactors(Subscriptions):
    """The reactors of one tenant. A reactor is a subscription; see `Subscriptions` for the rest.

    Threads: may be used from several at once.

    Args:
        dsn: The event store's database; never shown.
        tenant: Whose reactors.

    Raises:
        StoreUnavailableError: The database cannot be reached.
    """

    def all(self) -> list[ReactorStatus]:
        """Returns the status of every reactor that has run and was not removed, by name."""
        with self._connection() as connection:
            # in binary form, because psycopg reads no other DateStyle than ISO
            cursor = connection.cursor(binary=True, row_factory=class_row(ReactorStatus))
            return cursor.execute(_LIST, (LAG_EVENTS_MAX, self._tenant)).fetchall()

    def pause(self, name: str) -> None:
        """Pauses a reactor: after the return, no process performs its effects until `resume`.

        The call waits for effects in progress. The pause persists across restarts.

        Raises:
            SubscriptionError: There is no such reactor.
        """
        self._pause(name, pause=True)

    def resume(self, name: str) -> None:
        """Resumes a paused reactor at its checkpoint.

        Raises:
            SubscriptionError: There is no such reactor.
        """
        self._pause(name, pause=False)

    def _pause(self, name: str, *, pause: bool) -> None:
        if self._answer(_PAUSE, self._tenant, name, pause) != "done":
            raise SubscriptionError(
                f"there is no reactor {name}",
                hint="it is declared when it runs for the first time; headwater reactor list",
            )
