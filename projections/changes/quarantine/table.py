"""The quarantine table `headwater.quarantine`, as the job uses it.

Halting: a view that has to pause because of a row is paused in all its stores.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdc.errors import SchemaMismatchError
from cdc.postgres import session
from cdc.postgres.errors import PostgresError
from projections.changes.record import Record
from projections.changes.task_outcome import BlockedKeys
from projections.common.fault import Fault
from projections.errors import (
    KeylessChangeError,
    NoStoredRowError,
    QuarantineDownError,
    QuarantineFullError,
    RowUnexpectedError,
    UnknownShapeError,
    WaitsBehindError,
)
from projections.planning import view_schemas

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from foundation.errors import PlatformError
    from projections.changes.task_outcome import UnappliedRecord
    from projections.definition.views import Store
    from projections.errors import ProjectionError
    from projections.planning.job_config import LedgerAddress

    Connection = psycopg.Connection[Any]

UNRESOLVED: Final = NoStoredRowError.code
"""Cause of a change that lacks a value; it waits for the row, not for an operator."""

BEHIND: Final = WaitsBehindError.code
UNEXPECTED: Final = RowUnexpectedError.code
"""Cause of a row that does not meet an expectation of its view; it waits for a correction."""

KEYS_AT_ONCE: Final = 1_000
UNFOLLOWED_MAX: Final = 1_000
"""Most quarantined changes of rows without a key in a view: none of them can be applied later."""

BYTES_AT_ONCE: Final = 32 << 20
"""Most bytes that are retried at once: they must fit in the driver's memory beside its batches."""

_HELD: Final = """
SELECT view, key, bool_or(state <> 'dropped'), bool_or(state = 'dropped'),
       bool_or(state = 'dropped' AND version IS NULL), max(version) FILTER (WHERE state = 'dropped')
  FROM headwater.quarantine
 WHERE source = %s AND store = %s AND state <> 'superseded'
 GROUP BY view, key
"""
# Its offset can have another record if the topic was recreated.
_CLEAR: Final = """
DELETE FROM headwater.quarantine
 WHERE view = %(view)s AND store = %(store)s AND topic = %(topic)s AND partition = %(partition)s
   AND record_offset = %(offset)s AND digest <> %(digest)s
"""
_PUT: Final = """
INSERT INTO headwater.quarantine (view, store, topic, partition, record_offset, source, key,
       version, code, message, detail, hint, attempts, record_key, record_value, epoch, old_key,
       digest)
VALUES (%(view)s, %(store)s, %(topic)s, %(partition)s, %(offset)s, %(source)s, %(key)s,
       %(version)s, %(code)s, %(message)s, %(detail)s, %(hint)s, %(tried)s, %(record_key)s,
       %(record_value)s, %(epoch)s, %(old_key)s, %(digest)s)
ON CONFLICT (view, store, topic, partition, record_offset)
DO UPDATE SET last_seen_at = clock_timestamp()
"""
# A record that lacks a value may have it now, and records behind a settled one can continue.
_WAKE: Final = """
UPDATE headwater.quarantine AS q SET state = 'retry'
 WHERE source = %(source)s AND store = %(store)s AND view = %(view)s AND key = ANY(%(keys)s)
   AND state = 'waiting'
   AND NOT EXISTS (SELECT FROM headwater.quarantine AS first
                    WHERE first.source = q.source AND first.store = q.store
                      AND first.view = q.view AND first.key = q.key AND first.state = 'waiting'
                      AND first.code <> ALL(%(own_way)s) AND first.read_asked_at IS NULL)
"""
_OBSOLETE: Final = """
UPDATE headwater.quarantine SET state = 'retry'
 WHERE source = %s AND store = %s AND view = %s AND state = 'waiting' AND version < %s
"""
# A view of a table without a key cannot apply them; a snapshot of the whole table replaces them.
_MARK_REREAD: Final = """
UPDATE headwater.quarantine
   SET state = 'superseded', record_key = NULL, record_value = NULL, old_key = NULL,
       settled_at = clock_timestamp()
 WHERE source = %s AND store = %s AND view = %s AND code = %s AND version < %s
   AND state IN ('waiting', 'retry')
"""
_RETRY_RESHAPED: Final = """
UPDATE headwater.quarantine SET state = 'retry'
 WHERE source = %s AND view = ANY(%s) AND state = 'waiting' AND code = ANY(%s)
"""
_COUNT: Final = """
SELECT view, count(*), count(*) FILTER (WHERE code = %(unfollowed)s) > %(unfollowed_max)s
  FROM headwater.quarantine
 WHERE source = %(source)s AND store = %(store)s AND view = ANY(%(views)s)
   AND state IN ('waiting', 'retry')
 GROUP BY view
HAVING count(*) > %(rows_max)s OR count(*) FILTER (WHERE code = %(unfollowed)s) > %(unfollowed_max)s
"""
_DUE_STORES: Final = """
SELECT DISTINCT store FROM headwater.quarantine WHERE source = %s AND state = 'retry'
"""
_DUE: Final = """
WITH marked AS (
    SELECT DISTINCT view, key FROM headwater.quarantine
     WHERE source = %(source)s AND store = %(store)s AND state = 'retry' AND view = ANY(%(views)s)
     ORDER BY view, key LIMIT %(keys)s
), waiting AS (
    SELECT q.* FROM headwater.quarantine AS q JOIN marked USING (view, key)
     WHERE q.source = %(source)s AND q.store = %(store)s AND q.state IN ('waiting', 'retry')
), sizes AS (
    SELECT view, key, sum(octet_length(record_value)) AS bytes FROM waiting GROUP BY view, key
), due AS (
    SELECT view, key, sum(bytes) OVER (ORDER BY view, key) - bytes AS before FROM sizes
)
SELECT view, key, topic, partition, record_offset, record_key, record_value, epoch, old_key,
       version, (seen_lsn - '0/0')::bigint
  FROM waiting JOIN due USING (view, key)
 WHERE coalesce(before, 0) < %(bytes)s
 ORDER BY topic, partition, record_offset
"""
_ERASE: Final = """
DELETE FROM headwater.quarantine
 WHERE source = %s AND topic = %s AND key = ANY(%s) AND (version IS NULL OR version <= %s)
"""
_VACUUM: Final = "VACUUM headwater.quarantine"
_RESOLVE: Final = """
DELETE FROM headwater.quarantine
 WHERE view = %(view)s AND store = %(store)s AND topic = %(topic)s AND partition = %(partition)s
   AND record_offset = %(offset)s AND state <> 'dropped'
"""
_SUPERSEDED: Final = """
UPDATE headwater.quarantine
   SET state = 'superseded', record_key = NULL, record_value = NULL, old_key = NULL,
       settled_at = clock_timestamp()
 WHERE view = %(view)s AND store = %(store)s AND topic = %(topic)s AND partition = %(partition)s
   AND record_offset = %(offset)s AND state <> 'dropped'
"""
_FAILED: Final = """
UPDATE headwater.quarantine
   SET state = 'waiting', code = %(code)s, message = %(message)s, detail = %(detail)s,
       hint = %(hint)s, version = coalesce(%(version)s, version),
       attempts = attempts + %(tried)s, tried_at = clock_timestamp()
 WHERE view = %(view)s AND store = %(store)s AND topic = %(topic)s AND partition = %(partition)s
   AND record_offset = %(offset)s AND state <> 'dropped'
"""


@dataclass(frozen=True, slots=True)
class RetriedRecord:
    """A quarantined record that is retried.

    Attributes:
        view: Its view.
        key: Text of its key; see `UnappliedRecord`.
        topic: Its topic.
        record: The record.
        version: Its position in the log; None if it could not be read.
        seen_lsn: End of the log when it was first seen; its own position is before that.
    """

    view: str
    key: str
    topic: str
    record: Record
    version: int | None
    seen_lsn: int = 0


@dataclass(frozen=True, slots=True)
class RetryResult:
    """The result of a record's retry.

    Attributes:
        case: The record.
        error: Why it failed; None if it is applied or no longer needed.
        superseded: Whether it still cannot be read, but a later change has replaced it.
        version: Its position in the log; None if that cannot be read.
    """

    case: RetriedRecord
    error: PlatformError | None = None
    superseded: bool = False
    version: int | None = None


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translates the driver's errors into ours, without any value.

    Raises:
        QuarantineDownError: The database does not answer, or refuses.
    """
    try:
        yield
    except (psycopg.Error, PostgresError) as error:
        code = error.code if isinstance(error, PostgresError) else error.sqlstate
        raise QuarantineDownError(
            "quarantined records cannot be stored or read",
            detail=code or type(error).__name__,
            hint="headwater source status shows whether the source answers",
        ) from None


def connect(address: LedgerAddress) -> Connection:
    """Opens a connection in autocommit.

    Raises:
        QuarantineDownError: The database does not answer.
    """
    with translated_errors():
        return session.connect(address.dsn)


def write(
    address: LedgerAddress,
    store: Store,
    waiting: Sequence[UnappliedRecord],
    swept: Mapping[str, int],
) -> None:
    """Stores quarantined records, and retries those that a sweep made obsolete.

    Args:
        address: The quarantine.
        store: The store.
        waiting: Records to quarantine; see `put`.
        swept: Version up to which each view was swept; see `obsolete`.

    Raises:
        QuarantineFullError: A view would have more quarantined records than permitted.
        QuarantineDownError: It cannot be written.
    """
    with connect(address) as connection:
        if waiting:
            put(connection, address.source, store, waiting, address.rows_max)
        obsolete(connection, address.source, store, swept)


def held(connection: Connection, source: str, store: Store) -> dict[str, BlockedKeys]:
    """Returns the keys of each view of a store that are quarantined or were discarded."""
    keys: dict[str, set[str]] = defaultdict(set)
    given_up: dict[str, dict[str, int | None]] = defaultdict(dict)
    with translated_errors():
        rows = connection.execute(_HELD, (source, store)).fetchall()
    for view, key, waits, dropped, unread, version in rows:
        if waits:
            keys[view].add(key)
        if dropped:
            given_up[view][key] = None if unread else version
    views = keys.keys() | given_up.keys()
    return {view: BlockedKeys(frozenset(keys[view]), given_up[view]) for view in views}


def put(
    connection: Connection,
    source: str,
    store: Store,
    waiting: Sequence[UnappliedRecord],
    rows_max: int,
) -> None:
    """Stores quarantined records; those already stored only get a new time.

    Raises:
        QuarantineFullError: A view would have more quarantined records than permitted.
        QuarantineDownError: It cannot be written.
    """
    parameters = [{"store": store, "source": source, **_fields(each)} for each in waiting]
    views = sorted({each.view for each in waiting})
    behind: dict[str, list[str]] = defaultdict(list)
    for each in waiting:
        if each.error.code == BEHIND:
            behind[each.view].append(each.key)
    with translated_errors(), connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_CLEAR, parameters)
        cursor.executemany(_PUT, parameters)
        for view, of_view in behind.items():
            place = {"source": source, "store": store, "view": view}
            own_way = [UNRESOLVED, BEHIND, UNEXPECTED]
            cursor.execute(_WAKE, {**place, "keys": of_view, "own_way": own_way})
        limits = {
            "source": source,
            "store": store,
            "views": views,
            "rows_max": rows_max,
            "unfollowed": KeylessChangeError.code,
            "unfollowed_max": min(rows_max, UNFOLLOWED_MAX),
        }
        full = cursor.execute(_COUNT, limits).fetchone()
        if full is not None:
            view, count, unfollowed = full
            raise _full(store, view, count, unfollowed=unfollowed, rows_max=rows_max)


def _full(
    store: Store, view: str, count: int, *, unfollowed: bool, rows_max: int
) -> QuarantineFullError:
    if unfollowed:
        return QuarantineFullError(
            f"view {view}: many rows of its table, which has no key, were changed or deleted",
            detail=f"more than {min(rows_max, UNFOLLOWED_MAX)}; the view follows only inserts",
            hint=f"headwater view resume {view} reads the table again as a whole",
            view=view,
        )
    return QuarantineFullError(
        f"view {view}: too many quarantined records in {store}",
        detail=f"{count} records, limit {rows_max}",
        hint="headwater quarantine list shows the causes; raise quarantine.rows_max to allow more",
        view=view,
    )


def obsolete(connection: Connection, source: str, store: Store, below: Mapping[str, int]) -> None:
    """Retries the records below the version of a view's sweep, which are no longer needed."""
    with translated_errors():
        for view, version in below.items():
            unfollowed = source, store, view, KeylessChangeError.code, version
            connection.execute(_MARK_REREAD, unfollowed)
            connection.execute(_OBSOLETE, (source, store, view, version))


def retry_reshaped(connection: Connection, source: str, views: Iterable[str]) -> None:
    """Retries records with unexpected columns, because the views may have these columns by now."""
    codes = [UnknownShapeError.code, SchemaMismatchError.code]
    with translated_errors():
        connection.execute(_RETRY_RESHAPED, (source, sorted(views), codes))


def due_stores(connection: Connection, source: str) -> list[str]:
    """Returns the stores with records to retry."""
    with translated_errors():
        return [store for (store,) in connection.execute(_DUE_STORES, (source,)).fetchall()]


def due(
    connection: Connection, source: str, store: Store, views: Iterable[str]
) -> list[RetriedRecord]:
    """Returns all quarantined records of some keys to be retried, in the order of the log."""
    bounds = {"keys": KEYS_AT_ONCE, "bytes": BYTES_AT_ONCE}
    place = {"source": source, "store": store, "views": sorted(views)}
    with translated_errors():
        rows = connection.execute(_DUE, place | bounds).fetchall()
    return [
        RetriedRecord(
            view, key, topic, Record(record_key, value, epoch, part, offset, old_key), *rest
        )
        for view, key, topic, part, offset, record_key, value, epoch, old_key, *rest in rows
    ]


def settle(connection: Connection, store: Store, verdicts: Iterable[RetryResult]) -> None:
    """Records the results of retries."""
    resolved, superseded, failed = [], [], []
    for verdict in verdicts:
        place = {
            "store": store,
            **_place(verdict.case.view, verdict.case.topic, verdict.case.record),
        }
        if verdict.error is not None:
            failed.append({**place, "version": verdict.version, **_cause(verdict.error)})
        elif verdict.superseded:
            superseded.append(place)
        else:
            resolved.append(place)
    with translated_errors(), connection.transaction(), connection.cursor() as cursor:
        for statement, parameters in (
            (_RESOLVE, resolved),
            (_SUPERSEDED, superseded),
            (_FAILED, failed),
        ):
            if parameters:
                cursor.executemany(statement, parameters)


def _fields(waiting: UnappliedRecord) -> dict[str, Any]:
    record = waiting.record
    return {
        **_place(waiting.view, waiting.topic, record),
        **_cause(waiting.error),
        "key": waiting.key,
        "version": waiting.version,
        "record_key": record.key,
        "record_value": record.value,
        "epoch": record.epoch,
        "old_key": record.old_key,
        "digest": _digest(record),
    }


def _place(view: str, topic: str, record: Record) -> dict[str, Any]:
    return {
        "view": view,
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
    }


def _cause(error: PlatformError) -> dict[str, Any]:
    return {
        "tried": int(error.code != BEHIND),
        "code": error.code,
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
    }


def _digest(record: Record) -> bytes:
    parts = (record.key or b"", record.value or b"", (record.epoch or "").encode())
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def erase(
    connection: Connection, source: str, topic: str, keys: Iterable[str], through: int
) -> int:
    """Removes all quarantined data of keys up to a version, including dead rows of the database.

    Args:
        connection: To the database, in autocommit.
        source: Name of the source.
        topic: Topic of the records.
        keys: Their keys.
        through: The version.

    Returns:
        Number of removed records.

    Raises:
        QuarantineDownError: The database does not answer.
    """
    with translated_errors():
        removed = connection.execute(_ERASE, (source, topic, sorted(keys), through)).rowcount
    vacuum(connection)
    return removed


def vacuum(connection: Connection) -> None:
    """Removes dead rows from the table's file.

    Raises:
        QuarantineDownError: The database does not answer.
    """
    with translated_errors():
        connection.execute(_VACUUM)


def halt(address: LedgerAddress, view: str, error: ProjectionError) -> None:
    """Pauses a view until `headwater view resume`; the job binds its views without it.

    This is committed before the batch fails, so that it survives a kill of the job.

    Raises:
        QuarantineDownError: It cannot be recorded.
    """
    with connect(address) as connection, translated_errors():
        view_schemas.pause(connection, address.source, view, Fault.of(error))
