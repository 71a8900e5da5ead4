"""PostgresRetention: applies retention rules to the log on Postgres."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg

from eventstore.errors import CompactionError
from eventstore.model.callables import check_function, check_result
from eventstore.model.event import StoredEvent
from eventstore.model.names import check_stream, check_tenant
from eventstore.postgres.compaction import (
    OF_THE_STREAM,
    PostgresCompactor,
    bury,
    entomb,
    extents,
    lock_stream,
)
from eventstore.postgres.owner import connected
from eventstore.upkeep.compaction import EVENTS_MAX, Refusal
from eventstore.upkeep.retention import RetentionReport, check_age, tomb_of

if TYPE_CHECKING:
    from datetime import timedelta

    from psycopg import Connection

    from eventstore.upkeep.compaction import StreamExtent, StreamFold
    from eventstore.upkeep.retention import Export, RetentionRule

DROPPED_MAX: Final = 500
"""Events per transaction: the batch that is exported, then dropped."""

KEYS_MAX: Final = 5_000
"""Idempotency keys per transaction."""

_COLUMNS: Final = ", ".join(StoredEvent._fields)
_OLD_ORIGINALS: Final = (
    f"SELECT {_COLUMNS} FROM eventstore.archived_events"  # noqa: S608
    " WHERE tenant = %(tenant)s AND stream = %(stream)s AND stream_position < coalesce("
    "(SELECT min(stream_position) FROM eventstore.archived_events"
    " WHERE tenant = %(tenant)s AND stream = %(stream)s"
    " AND (recorded_at > %(before)s OR global_position > coalesce((SELECT through_position"
    " FROM eventstore.seals ORDER BY block DESC LIMIT 1), 0))), 9223372036854775807)"
    " ORDER BY stream_position"
)
_COUNT: Final = f"SELECT count(*) FROM ({_OLD_ORIGINALS}) AS old"  # noqa: S608
_SNAPSHOT: Final = (
    "SELECT data FROM eventstore.events WHERE tenant = %s AND stream = %s AND type = '$snapshot'"
)
_SOME_ORIGINALS: Final = f"{_OLD_ORIGINALS} LIMIT %(limit)s"
_DROP: Final = "SELECT eventstore.drop_archived(%s, %s, %s)"
_FORGET: Final = (
    "DELETE FROM eventstore.idempotency_keys WHERE (tenant, key) IN ("
    "SELECT tenant, key FROM eventstore.idempotency_keys"
    " WHERE tenant = %s AND recorded_at <= %s ORDER BY recorded_at LIMIT %s)"
)


_POSITION_MAX: Final = 2**63 - 1
_UNSEALED: Final = (
    "SELECT coalesce(max(global_position), 0) > coalesce((SELECT through_position"
    " FROM eventstore.seals ORDER BY block DESC LIMIT 1), 0)"
    " FROM eventstore.log WHERE tenant = %s AND stream = %s"
)
_FIRST_INSTANT: Final = datetime(1, 1, 1, tzinfo=UTC)
_SAVED_STATES: Final = "DELETE FROM eventstore.snapshots WHERE tenant = %s AND stream = %s"


class PostgresRetention:
    """A `Retention` for the log on one Postgres database.

    Args:
        dsn: The database, as the owner of the event store's tables; never shown.
        events_max: Maximum number of originals that one transaction archives.
    """

    def __init__(self, dsn: str, *, events_max: int = EVENTS_MAX) -> None:
        self._dsn = dsn
        self._events_max = events_max
        self._compactor = PostgresCompactor(dsn, events_max=events_max)

    def apply(
        self,
        rule: RetentionRule,
        *,
        tenant: str,
        fold: StreamFold | None = None,
        drop_archived: bool = False,
        export: Export | None = None,
    ) -> RetentionReport:
        """See `Retention.apply`."""
        check_tenant(tenant)
        if fold is not None and (fold.decider.category, fold.tenant) != (rule.category, tenant):
            raise CompactionError(
                f"streams of {rule.category} are not folded by {fold.decider.category}",
                detail=f"tenant {tenant}, fold for tenant {fold.tenant}",
            )
        if export is not None:
            check_function("the export of retention", export)
        report = RetentionReport()
        with connected(self._dsn) as connection:
            if rule.compact_closed_after is not None:
                before = _before(connection, rule.compact_closed_after)
                for extent, last_type, recorded_at in extents(connection, tenant, rule.category):
                    if last_type in rule.closing and recorded_at <= before:
                        report += self._compact_closed(connection, tenant, extent, fold)
            if rule.drop_archived_after is not None:
                before = _before(connection, rule.drop_archived_after)
                dropping = _Dropping(connection, before, drop_archived, export)
                for extent, _, _ in extents(connection, tenant, rule.category):
                    if extent.compacted:
                        report += dropping.drop(tenant, extent.stream)
        return report

    def _compact_closed(
        self,
        connection: Connection[Any],
        tenant: str,
        extent: StreamExtent,
        fold: StreamFold | None,
    ) -> RetentionReport:
        try:
            if fold is None:
                moved = entomb(connection, tenant, extent, self._events_max)
            else:
                moved = self._compactor.compact(fold, extent.stream, extent.head).events
        except OF_THE_STREAM as error:
            return RetentionReport(refused=(Refusal(extent.stream, error),))
        return RetentionReport(streams=1, archived=moved)

    def delete_stream(self, tenant: str, stream: str, *, reason: str) -> int:
        """See `Retention.delete_stream`."""
        tomb = tomb_of(reason)
        place = check_tenant(tenant), check_stream(stream)
        with connected(self._dsn) as connection:
            (unsealed,) = connection.execute(_UNSEALED, place).fetchone() or (False,)
            if unsealed:
                raise CompactionError(
                    f"events of stream {stream} are not sealed yet", hint="headwater events seal"
                )
            bury(connection, *place, self._events_max, tomb)
            with connection.transaction():
                lock_stream(connection, *place)
                row = _dropped(connection, *place)
                connection.execute(_SAVED_STATES, place)
        return int(row[0]) if row else 0

    def forget_keys(self, older_than: timedelta, *, tenant: str) -> int:
        """See `Retention.forget_keys`."""
        check_tenant(tenant)
        check_age(older_than)
        forgotten = 0
        with connected(self._dsn) as connection:
            before = _before(connection, older_than)
            while count := connection.execute(_FORGET, (tenant, before, KEYS_MAX)).rowcount:
                forgotten += count
        return forgotten


class _Dropping:
    """Drops or counts the originals that were recorded before an instant."""

    def __init__(
        self, connection: Connection[Any], before: datetime, allowed: bool, export: Export | None
    ) -> None:
        self._connection = connection
        self._before = before
        self._allowed = allowed
        self._export = export

    def drop(self, tenant: str, stream: str) -> RetentionReport:
        old = {"tenant": tenant, "stream": stream, "before": self._before}
        (count,) = self._connection.execute(_COUNT, old).fetchone() or (0,)
        if not count or not self._allowed:
            return RetentionReport(droppable=count)
        dropped = 0
        try:
            while (some := self._drop_some(old)) > 0:
                dropped += some
        except OF_THE_STREAM as error:
            return RetentionReport(dropped=dropped, refused=(Refusal(stream, error),))
        return RetentionReport(dropped=dropped, kept=int(some < 0))

    def _drop_some(self, old: dict[str, Any]) -> int:
        """Drops a batch of a stream's originals; returns its size, or -1 if they are needed."""
        place = old["tenant"], old["stream"]
        with self._connection.transaction():
            # the lock also keeps the `$snapshot` unchanged: compaction takes it as well
            lock_stream(self._connection, *place)
            row = self._connection.execute(_SNAPSHOT, place).fetchone()
            if row is None or _PAYLOADS.decode(row[0]).subjects:
                return -1
            cursor = self._connection.cursor(binary=True)
            cursor.execute(_SOME_ORIGINALS, {**old, "limit": DROPPED_MAX})
            events = list(map(StoredEvent._make, cursor))
            if not events:
                return 0
            if self._export is not None:
                check_result("the export of retention", self._export(events))
            self._connection.execute(_DROP, (*place, events[-1].stream_position))
        return len(events)


class _Payload(msgspec.Struct):
    """The part of a `$snapshot` payload that retention reads."""

    subjects: tuple[str, ...] = ()


_PAYLOADS: Final = msgspec.json.Decoder(_Payload)


def _dropped(connection: Connection[Any], tenant: str, stream: str) -> Any:
    try:
        return connection.execute(_DROP, (tenant, stream, _POSITION_MAX)).fetchone()
    except psycopg.Error as error:
        if error.sqlstate != "HWE03":
            raise
        # a writer appended before the deletion
        raise CompactionError(
            f"events of stream {stream} are not sealed yet",
            hint="headwater events seal, then repeat the deletion",
        ) from error


def _before(connection: Connection[Any], age: timedelta) -> datetime:
    (now,) = connection.execute("SELECT clock_timestamp()").fetchall()[0]
    instant: datetime = now
    return instant - min(age, instant - _FIRST_INSTANT)
