"""PostgresCompactor: compacts streams on Postgres, by the functions of `50_compaction.sql`."""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg
from psycopg import errors as postgres

from eventstore.errors import (
    CompactionError,
    ContentionError,
    EventRefusedError,
    SubjectKeyError,
    UndeclaredError,
    UpcastError,
)
from eventstore.model.event import SNAPSHOT_TYPE, StoredEvent
from eventstore.model.event_id import new_event_id
from eventstore.planning.snapshotting import BEGINNING
from eventstore.postgres.owner import connected
from eventstore.upkeep.compaction import (
    EVENTS_MAX,
    Compacted,
    CompactionReport,
    Folding,
    Refusal,
    StreamExtent,
    steps,
)
from foundation.advisory_lock import AdvisoryLock
from foundation.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from datetime import datetime
    from uuid import UUID

    from psycopg import Connection

    from eventstore.upkeep.compaction import CompactionPolicy, CompactionStep, StreamFold

ATTEMPTS_MAX: Final = 5
"""Attempts of one step if other processes compact the same stream; each of theirs makes progress.
"""

STREAMS: Final = 200
"""Streams per page of a category."""

EVENTS: Final = 1_000
"""Events in memory at a time while a stream is folded."""

LOCK_TIMEOUT_MS: Final = 10_000
"""How long a compaction waits for a stream's writers; later writers wait behind it."""

SNAPSHOT_TIMEOUT_S: Final = 10.0
"""How long a compaction waits, without locks, for transactions older than the folded events."""

OF_THE_STREAM: Final = (
    CompactionError,
    ContentionError,
    EventRefusedError,
    SubjectKeyError,
    UndeclaredError,
    UpcastError,
)
"""Errors of a single stream, after which the other streams of the category are compacted."""

TOMBSTONE: Final = b'{"fold":"","state":null}'
"""Payload of the `$snapshot` of a closed stream without a given fold."""

_POLL_S: Final = 0.02
_POSITION_MAX: Final = 2**63 - 1
_COLUMNS: Final = ", ".join(StoredEvent._fields)
_READ: Final = (
    "SELECT {} FROM eventstore.{} WHERE tenant = %s AND stream = %s"
    " AND stream_position > %s AND stream_position <= %s ORDER BY stream_position"
)
_EVENTS: Final = _READ.format(_COLUMNS, "events")
_ORIGINALS: Final = _READ.format(_COLUMNS, "log")
_FIRST: Final = _READ.format("event_id", "events") + " LIMIT 1"
# the same lock number as in the schema's functions: writers take this lock
_STREAM: Final = AdvisoryLock.numbered(1749232, parts=2)
_BEFORE: Final = "SELECT eventstore.transactions_before(%s, %s, %s)"
_UNDER_WAY: Final = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'virtualxid' AND virtualxid = ANY (%s) LIMIT 1"
)
_COMPACT: Final = "SELECT eventstore.compact(%s, %s, %s, %s, %s, %s::json)"
_STREAMS: Final = (
    "SELECT stream, first_position, first_type, head, last_type, last_recorded_at"
    " FROM eventstore.streams_of(%s, %s, %s, %s)"
)
_EXTENT: Final = (
    "SELECT stream_position, type, eventstore.stream_version(tenant, stream)"
    " FROM eventstore.events WHERE tenant = %s AND stream = %s ORDER BY stream_position LIMIT 1"
)


class PostgresCompactor:
    """A `Compactor` of the log on one Postgres database.

    Args:
        dsn: The database, as the owner of the event store's tables; never shown.
        events_max: Maximum number of originals that one transaction moves.
    """

    def __init__(self, dsn: str, *, events_max: int = EVENTS_MAX) -> None:
        self._dsn = dsn
        self._events_max = events_max

    def compact(self, fold: StreamFold, stream: str, through: int | None = None) -> Compacted:
        """See `Compactor.compact`."""
        with connected(self._dsn) as connection:
            return self._compact(connection, fold, stream, through)

    def compact_category(self, fold: StreamFold, policy: CompactionPolicy) -> CompactionReport:
        """See `Compactor.compact_category`."""
        if policy.category != fold.decider.category:
            raise CompactionError(
                f"streams of {policy.category} are not folded by {fold.decider.category}"
            )
        done: list[Compacted] = []
        refused: list[Refusal] = []
        with connected(self._dsn) as connection:
            for extent, _, _ in extents(connection, fold.tenant, policy.category):
                through = policy.through(extent)
                if through is None:
                    continue
                try:
                    done.append(self._compact(connection, fold, extent.stream, through))
                except OF_THE_STREAM as error:
                    refused.append(Refusal(extent.stream, error))
        return CompactionReport(len(done), sum(one.events for one in done), tuple(refused))

    def _compact(
        self, connection: Connection[Any], fold: StreamFold, stream: str, through: int | None
    ) -> Compacted:
        extent = _extent(connection, fold.tenant, stream)
        through = extent.head if through is None else through
        if not 1 <= through <= extent.head:
            raise CompactionError(
                f"stream {stream} cannot be folded through {through:,}",
                detail=f"it is at version {extent.head:,}",
            )
        if through < extent.compacted:
            return Compacted(stream, extent.compacted, 0)
        moved = 0
        for step in steps(extent.compacted, through, self._events_max):
            moved += _step(connection, fold, stream, step)
        return Compacted(stream, through, moved)


def extents(
    connection: Connection[Any], tenant: str, category: str
) -> Iterator[tuple[StreamExtent, str, datetime]]:
    """Yields a category's streams by name, each with the type and time of its last row."""
    after = ""
    while page := connection.execute(_STREAMS, (tenant, category, after, STREAMS)).fetchall():
        for row in page:
            yield StreamExtent(*row[:4]), row[4], row[5]
        after = page[-1][0]


def entomb(
    connection: Connection[Any],
    tenant: str,
    extent: StreamExtent,
    events_max: int,
    tomb: bytes = TOMBSTONE,
) -> int:
    """Replaces a whole stream with a `$snapshot` without a state; the stream keeps its version.

    No fold uses this `$snapshot`: a fold of the stream reads its originals.

    Args:
        connection: Connection of the owner.
        tenant: Tenant of the stream.
        extent: The stream, up to its head.
        events_max: Maximum number of originals that one transaction moves.
        tomb: Payload of the `$snapshot`.

    Returns:
        The number of archived originals.

    Raises:
        CompactionError: The stream has a `$snapshot` with a state, which would be lost.
        ContentionError: A writer or an older transaction stays open.
    """
    place = tenant, extent.stream
    for step in steps(extent.compacted, extent.head, events_max):
        with connection.transaction():
            _wait_for_snapshots(connection, *place, step.through)
            lock_stream(connection, *place)
            with closing(_read(connection, _EVENTS, (*place, 0, _POSITION_MAX))) as rows:
                first = next(rows, None)
            if first is not None and _compacted(first) and not _is_tomb(first.data):
                raise CompactionError(
                    f"stream {extent.stream} has a $snapshot with a state that would be lost",
                    hint="pass the fold of the category",
                )
            _move(connection, (*place, first and first.event_id, step.through, tomb))
    return extent.head - extent.compacted


def bury(
    connection: Connection[Any], tenant: str, stream: str, events_max: int, tomb: bytes
) -> None:
    """Replaces a whole stream with a `$snapshot` without a state.

    Raises:
        CompactionError: The stream does not exist.
        ContentionError: A writer or an older transaction stays open.
    """
    place = tenant, stream
    extent = _extent(connection, *place)
    if not extent.head:
        raise CompactionError(f"stream {stream} does not exist", detail=f"tenant {tenant}")
    ends = [step.through for step in steps(extent.compacted, extent.head, events_max)]
    for end in ends or [extent.head]:
        with connection.transaction():
            _wait_for_snapshots(connection, *place, end)
            lock_stream(connection, *place)
            _move(connection, (*place, _first(connection, *place), end, tomb))


def _is_tomb(data: bytes) -> bool:
    """Whether a `$snapshot` has no state."""
    payload = msgspec.json.decode(data)
    return payload.get("fold") == "" and payload.get("state") is None


def _extent(connection: Connection[Any], tenant: str, stream: str) -> StreamExtent:
    row = connection.execute(_EXTENT, (tenant, stream)).fetchone()
    return StreamExtent(stream, *(row or (1, "", 0)))


def _step(connection: Connection[Any], fold: StreamFold, stream: str, step: CompactionStep) -> int:
    forgotten: SubjectKeyError | None = None
    for _ in range(ATTEMPTS_MAX):
        try:
            with connection.transaction():
                moved = _fold_and_move(connection, fold, stream, step)
        except SubjectKeyError as error:
            # shredded during the fold: in the next attempt its fields are redacted
            forgotten = error
        else:
            if moved is not None:
                return moved
    if forgotten is not None:
        raise forgotten
    raise ContentionError(
        f"stream {stream} is repeatedly compacted by other processes",
        hint="compact the stream from one process only",
    )


def _fold_and_move(
    connection: Connection[Any], fold: StreamFold, stream: str, step: CompactionStep
) -> int | None:
    """Makes one attempt; returns None if another process compacted the stream meanwhile."""
    place = fold.tenant, stream
    end = step.checked_through or _POSITION_MAX
    with closing(_read(connection, _EVENTS, (*place, 0, end))) as rows:
        first = next(rows, None)
        compacted = _compacted(first)
        if first is None or compacted > step.through:
            return 0  # another process has compacted further
        base = fold.base_of(first)
        if base is None and not _has_originals(connection, *place):
            base = fold.base_without_originals(first)
        if base is not None and base.stream_position == step.through:
            return 0
        folding = Folding(fold, stream, step.through, base or BEGINNING)
        if base is not None:
            _add(folding, rows if compacted else chain((first,), rows))
    if base is None:
        with closing(_read(connection, _ORIGINALS, (*place, 0, end))) as rows:
            _add(folding, rows)

    _wait_for_snapshots(connection, *place, step.through)
    # from here on, the stream's writers wait
    lock_stream(connection, *place)
    if _first(connection, *place) != first.event_id:
        return None
    if step.checked_through is None:
        with closing(_read(connection, _EVENTS, (*place, folding.position, _POSITION_MAX))) as rows:
            _add(folding, rows)
    _move(connection, (*place, first.event_id, step.through, folding.payload))
    return step.through - compacted


def _has_originals(connection: Connection[Any], tenant: str, stream: str) -> bool:
    with closing(_read(connection, _ORIGINALS, (tenant, stream, 0, 1))) as rows:
        return next(rows, None) is not None


def _add(folding: Folding, rows: Iterable[StoredEvent]) -> None:
    for stored in rows:
        folding.add(stored)


def _compacted(first: StoredEvent | None) -> int:
    return first.stream_position if first is not None and first.type == SNAPSHOT_TYPE else 0


def _read(
    connection: Connection[Any], sql: str, parameters: tuple[str, str, int, int]
) -> Generator[StoredEvent]:
    """Reads a stream in one statement, so from one snapshot."""
    with connection.cursor(f"stream_{new_event_id().hex}", binary=True) as cursor:
        cursor.itersize = EVENTS
        cursor.execute(sql, parameters)
        yield from map(StoredEvent._make, cursor)


def _wait_for_snapshots(
    connection: Connection[Any], tenant: str, stream: str, through: int
) -> None:
    """Waits until every open transaction sees the event that a `$snapshot` will replace.

    Raises:
        ContentionError: An older transaction stays open.
    """
    (waited_for,) = connection.execute(_BEFORE, (tenant, stream, through)).fetchone() or ((),)

    def ended() -> bool:
        return not waited_for or not connection.execute(_UNDER_WAY, (waited_for,)).fetchone()

    if not wait_until(ended, SNAPSHOT_TIMEOUT_S, _POLL_S):
        raise ContentionError(
            f"a transaction is older than event {through:,} of stream {stream}",
            detail=f"waited for {SNAPSHOT_TIMEOUT_S:g} s",
            hint="SELECT pid, xact_start FROM pg_stat_activity WHERE backend_xmin IS NOT NULL; "
            "older events can be compacted meanwhile",
        )


def lock_stream(connection: Connection[Any], tenant: str, stream: str) -> None:
    """Blocks the writers of a stream until the transaction ends.

    Raises:
        ContentionError: A writer stays open for too long.
    """
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_TIMEOUT_MS}ms",))
    try:
        connection.execute(_STREAM.in_transaction, (tenant, stream))
    except postgres.LockNotAvailable as error:
        raise ContentionError(
            f"a writer of stream {stream} stays open",
            detail=f"waited for {LOCK_TIMEOUT_MS:,} ms",
            hint="SELECT * FROM eventstore.writers_under_way",
        ) from error


def _first(connection: Connection[Any], tenant: str, stream: str) -> UUID | None:
    row = connection.execute(_FIRST, (tenant, stream, 0, _POSITION_MAX)).fetchone()
    return row[0] if row else None


def _move(
    connection: Connection[Any], stream: tuple[str, str, UUID | None, int, bytes | None]
) -> None:
    *place, payload = stream
    if payload is None:
        raise CompactionError(f"stream {stream[1]} has no event {stream[3]:,}")
    try:
        connection.execute(_COMPACT, (*place, new_event_id(), payload.decode()))
    except psycopg.Error as error:
        if not isinstance(error, postgres.UniqueViolation) and error.sqlstate != "HWE03":
            raise
        raise CompactionError(
            f"stream {stream[1]} cannot be archived",
            detail=error.diag.constraint_name or error.diag.message_primary,
            hint="headwater events verify",
        ) from error
