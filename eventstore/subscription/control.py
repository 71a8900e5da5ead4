"""Subscriptions: status, waits, replays and parked events, for operators and readers of views."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import psycopg
from psycopg.rows import class_row

from eventstore.model.names import DEFAULT_TENANT, check_tenant
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated
from eventstore.postgres.sessions import Sessions
from eventstore.subscription.reaching import REACHED, Reaching
from eventstore.subscription.refusal import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from eventstore.model.token import Token
    from eventstore.postgres.connection import StoreConnection

T = TypeVar("T")

CONNECTIONS_MAX: Final = 4
LAG_EVENTS_MAX: Final = 100_000
"""Counting more events would cost more than the number is worth."""

_STATUS: Final = (
    "SELECT s.name, s.partition, s.partitions, s.global_position, s.replay_until,"
    " s.replay_through, o.owner AS owner_pid, s.updated_at,"
    " (SELECT count(*) FROM (SELECT FROM eventstore.log AS e"
    "    WHERE e.tenant = s.tenant AND e.global_position > s.global_position"
    "      AND eventstore.partition_of(e.tenant, e.stream, s.partitions) = s.partition"
    "    LIMIT %s) AS ahead) AS projection_lag_events,"
    " (SELECT count(*) FROM eventstore.parked_events AS p"
    "   WHERE p.tenant = s.tenant AND p.subscription = s.name AND p.state <> 'waiting'"
    "     AND eventstore.partition_of(p.tenant, p.stream, s.partitions) = s.partition)"
    "   AS parked_streams,"
    " (SELECT count(*) FROM eventstore.timers AS t"
    "   WHERE t.tenant = s.tenant AND t.manager = s.name AND t.attempts > 0"
    "     AND eventstore.partition_of(t.tenant, t.process_id, s.partitions) = s.partition)"
    "   AS parked_timers"
    " FROM eventstore.subscriptions AS s"
    " JOIN eventstore.partition_owners AS o USING (lock_id)"
    " WHERE s.tenant = %s AND s.name = %s ORDER BY s.partition"
)
_NAMES: Final = "SELECT DISTINCT name FROM eventstore.subscriptions WHERE tenant = %s ORDER BY name"
_PARKED: Final = (
    "SELECT stream, global_position, state, attempts, error_code, error_type, error_location,"
    " retry_at, parked_at, (SELECT count(*) FROM eventstore.parked_events AS behind"
    "   WHERE behind.tenant = p.tenant AND behind.subscription = p.subscription"
    "     AND behind.stream = p.stream AND behind.state = 'waiting') AS waiting"
    " FROM eventstore.parked_events AS p"
    " WHERE tenant = %s AND subscription = %s AND state <> 'waiting' ORDER BY stream LIMIT %s"
)
_TIMERS: Final = (
    "SELECT process_id, name AS timer,"
    " CASE WHEN fires_at = 'infinity' THEN 'parked' ELSE 'retrying' END AS state, due_at, attempts,"
    " error_code, error_type, error_location, nullif(fires_at, 'infinity') AS retry_at"
    " FROM eventstore.timers WHERE tenant = %s AND manager = %s AND attempts > 0"
    " ORDER BY process_id, name LIMIT %s"
)
# The caller names an error by its code, its class or the full name of the class.
_OF_ERROR: Final = (
    "(%(error)s::text IS NULL OR %(error)s IN (error_code, error_type)"
    " OR right(error_type, length(%(error)s) + 1) = '.' || %(error)s)"
)
_RETRY_ALL: Final = (
    "SELECT count(*) FILTER (WHERE eventstore.retry_parked(tenant, subscription, stream))"  # noqa: S608
    " FROM (SELECT tenant, subscription, stream FROM eventstore.parked_events"
    f"       WHERE tenant = %(tenant)s AND subscription = %(name)s AND state <> 'waiting'"
    f"         AND {_OF_ERROR} ORDER BY global_position OFFSET 0) AS parked"
)
# Locks the processes before their timers, in the same order as a runner.
_PROCESSES: Final = (
    "SELECT FROM eventstore.processes WHERE tenant = %(tenant)s AND manager = %(name)s"
    " AND process_id IN (SELECT process_id FROM eventstore.timers WHERE tenant = %(tenant)s"
    "   AND manager = %(name)s AND attempts > 0 AND {})"
    " ORDER BY process_id FOR UPDATE"
)
_THE_TIMERS: Final = "tenant = %(tenant)s AND manager = %(name)s AND attempts > 0 AND {}"
_FIRE_TIMERS: Final = (
    "UPDATE eventstore.timers SET fires_at = clock_timestamp(), attempts = 1 WHERE "  # noqa: S608
    + _THE_TIMERS
)
_DROP_TIMERS: Final = "DELETE FROM eventstore.timers WHERE " + _THE_TIMERS  # noqa: S608
_THIS_TIMER: Final = "process_id = %(process_id)s AND name = %(timer)s"
_UNREPEATABLE: Final = (
    "SELECT CASE WHEN bool_or(reactor) THEN 'effects'"
    "            WHEN bool_or(tables <> '{}') THEN 'doubling' END"
    " FROM eventstore.subscriptions WHERE tenant = %s AND name = %s"
)
_REPLAY: Final = "SELECT eventstore.replay_subscription(%s, %s, %s, %s)"
_RETRY: Final = "SELECT eventstore.retry_parked(%s, %s, %s)"
_DROP: Final = "SELECT eventstore.drop_parked(%s, %s, %s, %s)"
_REMOVE: Final = "SELECT eventstore.remove_subscription(%s, %s)"


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of one partition of a subscription.

    Attributes:
        name: Name of the subscription.
        partition: Number of the partition, from 0.
        partitions: Number of partitions.
        global_position: Checkpoint; all events up to here are handled or parked.
        replay_until: Effects are suppressed for events up to here.
        replay_through: Where a partial replay ends; None if none is in progress.
        owner_pid: The server process of the member that owns it; None without an owner.
        updated_at: When the checkpoint last moved.
        projection_lag_events: Events of its streams after its checkpoint, whether or not they match
            the query; counted up to `LAG_EVENTS_MAX`.
        parked_streams: Streams that wait for a retry or for a decision.
        parked_timers: Timers of a process manager that wait for a retry or for a decision.
    """

    name: str
    partition: int
    partitions: int
    global_position: int
    replay_until: int
    replay_through: int | None
    owner_pid: int | None
    updated_at: datetime
    projection_lag_events: int
    parked_streams: int
    parked_timers: int = 0


@dataclass(frozen=True, slots=True)
class ParkedStream:
    """A stream that waits because the handler failed with one of its events.

    Attributes:
        stream: Name of the stream.
        global_position: Global position of the event that failed.
        state: `retrying` if it is retried automatically, or `parked` until an operator decides.
        attempts: Number of calls of the handler with this event.
        error_code: Stable code of the last error, or SQLSTATE; None if it has none.
        error_type: Class of the last error.
        error_location: `file:line` of the handler that raised it.
        retry_at: When it is retried automatically; None if it is not.
        parked_at: When it first failed.
        waiting: Number of later events of the stream that wait behind it.
    """

    stream: str
    global_position: int
    state: str
    attempts: int
    error_code: str | None
    error_type: str | None
    retry_at: datetime | None
    parked_at: datetime
    waiting: int
    error_location: str | None = None


@dataclass(frozen=True, slots=True)
class ParkedTimer:
    """A timer of a process manager whose reaction failed.

    Attributes:
        process_id: Process of the timer.
        timer: Name of the timer.
        state: `retrying` if it is retried automatically, or `parked` until an operator decides.
        due_at: When it was due.
        attempts: Number of calls of the reaction.
        error_code: Stable code of the last error, or SQLSTATE; None if it has none.
        error_type: Class of the last error.
        error_location: `file:line` of the reaction that raised it.
        retry_at: When it is retried automatically; None if it is not.
    """

    process_id: str
    timer: str
    state: str
    due_at: datetime
    attempts: int
    error_code: str | None
    error_type: str | None
    error_location: str | None
    retry_at: datetime | None


class Subscriptions:
    """The subscriptions of one tenant.

    Threads: may be used concurrently.

    Args:
        dsn: The event store's database; never shown.
        tenant: The tenant.

    Raises:
        StoreUnavailableError: The database cannot be reached.
    """

    def __init__(self, dsn: str, *, tenant: str = DEFAULT_TENANT) -> None:
        check_address(dsn)
        self._tenant = check_tenant(tenant)
        self._sessions = Sessions(dsn, CONNECTIONS_MAX)

    def names(self) -> list[str]:
        """Returns the names of all subscriptions that have run and were not removed."""
        with self._connection() as connection:
            return [name for (name,) in connection.execute(_NAMES, (self._tenant,))]

    def status(self, name: str) -> list[PartitionStatus]:
        """Returns the status of each partition.

        Raises:
            SubscriptionError: There is no such subscription.
        """
        with self._connection() as connection:
            cursor = _statuses(connection, PartitionStatus)
            found = cursor.execute(_STATUS, (LAG_EVENTS_MAX, self._tenant, name)).fetchall()
        if not found:
            raise refused("absent", name)
        return found

    def parked(self, name: str, *, limit: int = 1_000) -> list[ParkedStream]:
        """Returns the parked streams, by name."""
        with self._connection() as connection:
            cursor = _statuses(connection, ParkedStream)
            return cursor.execute(_PARKED, (self._tenant, name, limit)).fetchall()

    def retry(self, name: str, stream: str) -> bool:
        """Requests that the runner deliver the events of a parked stream again, in order.

        While an event fails, the later events of the stream wait. Returns whether the stream was
        parked.
        """
        return bool(self._answer(_RETRY, self._tenant, name, stream))

    def parked_timers(self, name: str, *, limit: int = 1_000) -> list[ParkedTimer]:
        """Returns the timers of a process manager whose reaction failed, by process."""
        with self._connection() as connection:
            cursor = _statuses(connection, ParkedTimer)
            return cursor.execute(_TIMERS, (self._tenant, name, limit)).fetchall()

    def retry_all(self, name: str, *, error_type: str | None = None) -> int:
        """Requests a retry of all parked streams, and of all failed timers of a process manager.

        Args:
            name: The subscription.
            error_type: Retries only failures with this error: its class (`KeyError`), the full name
                of the class, or its code (`HW-E050`, `40001`).

        Returns:
            The number of streams and timers.
        """
        asked = {"tenant": self._tenant, "name": name, "error": error_type}
        with self._connection() as connection:
            row: Any = connection.execute(_RETRY_ALL, asked).fetchone()
            return int(row[0]) + _change(connection, _FIRE_TIMERS, _OF_ERROR, asked)

    def retry_timer(self, name: str, process_id: str, timer: str) -> bool:
        """Fires a timer whose reaction failed again now; returns whether it exists."""
        return self._timer(_FIRE_TIMERS, name, process_id, timer)

    def drop_timer(self, name: str, process_id: str, timer: str) -> bool:
        """Drops a timer whose reaction failed: the process never handles it.

        Returns:
            Whether the timer existed.
        """
        return self._timer(_DROP_TIMERS, name, process_id, timer)

    def drop(self, name: str, stream: str, *, everything: bool = False) -> int:
        """Drops the failed event of a parked stream; the later events are delivered.

        Args:
            name: The subscription.
            stream: The parked stream.
            everything: Whether the waiting later events are dropped as well.

        Returns:
            The number of dropped events, which the subscription never handles.
        """
        return int(self._answer(_DROP, self._tenant, name, stream, everything))

    def replay(self, name: str, from_position: int, *, through: int | None = None) -> None:
        """Delivers events again without effects: `Delivery.effect` does nothing for them.

        The subscription may be running; the replay begins after its current batch.

        Args:
            name: The subscription.
            from_position: Replays the events after this global position.
            through: Replays up to this global position, then continues at the checkpoint. None:
                replays up to the checkpoint, then continues.

        Raises:
            SubscriptionError: There is nothing to replay, or a replay would lose or repeat writes.
        """
        unrepeatable = self._answer(_UNREPEATABLE, self._tenant, name)
        if unrepeatable is not None:
            raise refused(unrepeatable, name)
        outcome = self._answer(_REPLAY, self._tenant, name, from_position, through)
        if outcome != "done":
            raise refused(outcome, name)

    def remove(self, name: str) -> None:
        """Deletes a subscription and its parked events.

        Raises:
            SubscriptionError: The subscription is running, or does not exist.
        """
        outcome = self._answer(_REMOVE, self._tenant, name)
        if outcome != "done":
            raise refused(outcome, name)

    def wait_for(
        self,
        name: str,
        token: Token,
        timeout_s: float,
        *,
        running: Callable[[], object] = lambda: None,
    ) -> None:
        """Waits until all partitions of a subscription have handled the events up to a token.

        Args:
            name: The subscription.
            token: The token returned by an append or a command.
            timeout_s: Longest wait, in seconds.
            running: Called between two polls; may raise to end the wait.

        Raises:
            WaitTimeoutError: The time is up, or the event is parked.
            SubscriptionError: The subscription does not exist, or belongs to another tenant than
                the append.
        """
        reaching = Reaching(self._tenant, name, token, timeout_s)
        while True:
            with self._connection() as connection:
                row: Any = connection.execute(REACHED, reaching.asked).fetchone()
            pause_s = reaching.pause_s(row)
            if pause_s is None:
                return
            running()
            time.sleep(pause_s)

    def close(self) -> None:
        """Closes the connections."""
        self._sessions.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _timer(self, how: str, name: str, process_id: str, timer: str) -> bool:
        which = {"tenant": self._tenant, "name": name, "process_id": process_id, "timer": timer}
        with self._connection() as connection:
            return _change(connection, how, _THIS_TIMER, which) > 0

    def _answer(self, asked: str, *parameters: Any) -> Any:
        with self._connection() as connection:
            row: Any = connection.execute(asked, parameters).fetchone()
        return row[0]

    @contextmanager
    def _connection(self) -> Iterator[StoreConnection]:
        try:
            with self._sessions.acting(self._tenant) as connection:
                yield connection
        except psycopg.Error as error:
            raise translated(error) from error


def _change(connection: StoreConnection, how: str, which: str, asked: dict[str, Any]) -> int:
    """Changes timers after locking their processes; returns the number of timers."""
    with connection.transaction():
        connection.execute(_PROCESSES.format(which).encode(), asked)
        return connection.execute(how.format(which).encode(), asked).rowcount


def _statuses(connection: psycopg.Connection[Any], kind: type[T]) -> psycopg.Cursor[T]:
    """Returns a cursor whose rows are of a class.

    Times come in binary form: as text they have the session's DateStyle; psycopg reads ISO only.
    """
    return connection.cursor(binary=True, row_factory=class_row(kind))
