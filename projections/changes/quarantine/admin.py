"""The quarantine for operators: list, show, retry and drop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from psycopg import errors
from psycopg.rows import class_row

from projections.changes.quarantine.table import BEHIND, UNRESOLVED, translated_errors

if TYPE_CHECKING:
    from datetime import datetime

    from projections.changes.quarantine.table import Connection

# A key of one column may be given as its value alone.
_PICKED: Final = """
    source = %(source)s AND state IN ('waiting', 'retry')
AND (%(view)s::text IS NULL OR view = %(view)s) AND (%(store)s::text IS NULL OR store = %(store)s)
AND (%(code)s::text IS NULL OR code = %(code)s)
AND (%(key)s::text IS NULL OR key = %(key)s
     OR CASE WHEN key LIKE '{%%' THEN (SELECT count(*) = 1 AND bool_and(value = %(key)s)
                                         FROM json_each_text(key::json)) END)
"""
_KEYS: Final = f"""
SELECT view, store, key, bool_or(state = 'retry') AS retrying, count(*) AS records,
       (array_agg(code ORDER BY own DESC, version NULLS FIRST, record_offset))[1] AS code,
       (array_agg(message ORDER BY own DESC, version NULLS FIRST, record_offset))[1] AS message,
       (array_agg(detail ORDER BY own DESC, version NULLS FIRST, record_offset))[1] AS detail,
       max(attempts) AS attempts, min(first_seen_at) AS first_seen_at,
       max(last_seen_at) AS last_seen_at
  FROM (SELECT *, code <> %(behind)s AS own FROM headwater.quarantine
         WHERE source = %(source)s AND state IN ('waiting', 'retry')
           AND (view, store, key) IN (SELECT view, store, key FROM headwater.quarantine
                                       WHERE {_PICKED})) AS waiting
 GROUP BY view, store, key ORDER BY min(first_seen_at), view, store, key
"""  # noqa: S608  # both parts are constants
_RECORDS: Final = f"""
SELECT view, store, key, state, topic, partition, record_offset AS "offset", version, code, message,
       detail, hint, attempts, first_seen_at, last_seen_at, tried_at, record_value AS value
  FROM headwater.quarantine
 WHERE source = %(source)s AND state IN ('waiting', 'retry')
   AND (view, store, key) IN (SELECT view, store, key FROM headwater.quarantine WHERE {_PICKED})
 ORDER BY view, store, key, topic, partition, record_offset
"""  # noqa: S608
_RETRY: Final = f"""
UPDATE headwater.quarantine SET state = 'retry'
 WHERE source = %(source)s AND state = 'waiting'
   AND (view, store, key) IN (SELECT view, store, key FROM headwater.quarantine WHERE {_PICKED})
RETURNING view, store, key
"""  # noqa: S608
# A record that only lacks a value is discarded if no other record of its key has failed.
_DROP: Final = f"""
WITH picked AS (SELECT DISTINCT view, store, key FROM headwater.quarantine WHERE {_PICKED}),
failing AS (
    SELECT view, store, key, bool_or(code <> ALL(%(own_way)s)) AS failing
      FROM headwater.quarantine JOIN picked USING (view, store, key)
     WHERE source = %(source)s AND state IN ('waiting', 'retry')
     GROUP BY view, store, key
), decided AS (
    SELECT view, store, topic, partition, record_offset,
           code = %(behind)s OR failing AND code = ANY(%(own_way)s) AS kept
      FROM headwater.quarantine JOIN failing USING (view, store, key)
     WHERE source = %(source)s AND state IN ('waiting', 'retry')
)
UPDATE headwater.quarantine AS q
   SET state = CASE WHEN kept THEN 'retry' ELSE 'dropped' END,
       record_key = CASE WHEN kept THEN record_key END,
       record_value = CASE WHEN kept THEN record_value END,
       old_key = CASE WHEN kept THEN old_key END,
       settled_at = CASE WHEN NOT kept THEN clock_timestamp() END
  FROM decided AS d
 WHERE (q.view, q.store, q.topic, q.partition, q.record_offset)
     = (d.view, d.store, d.topic, d.partition, d.record_offset)
RETURNING q.state
"""  # noqa: S608
_COUNTS: Final = """
SELECT view, store, count(*), count(DISTINCT key) FILTER (WHERE code = %s)
  FROM headwater.quarantine WHERE source = %s AND state IN ('waiting', 'retry')
 GROUP BY view, store
"""
_RETRYING: Final = """
SELECT view, store, key, bool_or(state = 'retry') FROM headwater.quarantine
 WHERE source = %s AND state IN ('waiting', 'retry')
   AND (view, store, key) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))
 GROUP BY view, store, key
"""

_T = TypeVar("_T")
WaitingKey = tuple[str, str, str]
"""View, store and key of records that wait together."""


@dataclass(frozen=True, slots=True)
class KeySelection:
    """A selection of keys; None selects all.

    Attributes:
        view: Keys of this view.
        store: Keys in this store.
        key: This key: as listed, or as its value for a key of one column.
        cause: Keys with a record that is quarantined with this error code.
    """

    view: str | None = None
    store: str | None = None
    key: str | None = None
    cause: str | None = None

    @property
    def everything(self) -> bool:
        """Whether it selects all keys."""
        return self == KeySelection()


@dataclass(frozen=True, slots=True)
class QuarantinedKey:
    """A quarantined key of a view in a store.

    Attributes:
        view: The view.
        store: The store.
        key: The key.
        retrying: Whether the job will retry it.
        records: Number of its quarantined records.
        code: Error code of the first record that failed.
        message: Message of that error.
        detail: Detail of that error.
        attempts: Number of attempts.
        first_seen_at: When the key was quarantined.
        last_seen_at: When the newest of its records arrived.
    """

    view: str
    store: str
    key: str
    retrying: bool
    records: int
    code: str
    message: str
    detail: str | None
    attempts: int
    first_seen_at: datetime
    last_seen_at: datetime


@dataclass(frozen=True, slots=True)
class QuarantinedRecord:
    """A quarantined record, with its topic and offset, its cause and its content."""

    view: str
    store: str
    key: str
    state: str
    topic: str
    partition: int
    offset: int
    version: int | None
    code: str
    message: str
    detail: str | None
    hint: str | None
    attempts: int
    first_seen_at: datetime
    last_seen_at: datetime
    tried_at: datetime | None
    value: bytes | None


def keys(connection: Connection, source: str, picked: KeySelection) -> list[QuarantinedKey]:
    """Returns the quarantined keys, oldest first."""
    return _rows(connection, QuarantinedKey, _KEYS, source, picked)


def records(connection: Connection, source: str, picked: KeySelection) -> list[QuarantinedRecord]:
    """Returns the quarantined records."""
    return _rows(connection, QuarantinedRecord, _RECORDS, source, picked)


def retry(connection: Connection, source: str, picked: KeySelection) -> set[WaitingKey]:
    """Requests that the job retries keys; returns them."""
    with translated_errors():
        return set(connection.execute(_RETRY.encode(), _parameters(source, picked)).fetchall())


def still_waiting(
    connection: Connection, source: str, keys: set[WaitingKey]
) -> tuple[set[WaitingKey], set[WaitingKey]]:
    """Returns the keys that the job has not retried yet, and those whose retry has failed."""
    columns = [list(column) for column in zip(*sorted(keys), strict=True)] or [[], [], []]
    with translated_errors():
        rows = connection.execute(_RETRYING, (source, *columns)).fetchall()
    untried = {(view, store, key) for view, store, key, retrying in rows if retrying}
    return untried, {(view, store, key) for view, store, key, _ in rows} - untried


def drop(connection: Connection, source: str, picked: KeySelection) -> tuple[int, int]:
    """Discards the failed records; later ones of their keys are applied.

    Returns:
        Number of discarded records, and of records to be applied.
    """
    with translated_errors():
        rows = connection.execute(_DROP.encode(), _parameters(source, picked)).fetchall()
    dropped = sum(state == "dropped" for (state,) in rows)
    return dropped, len(rows) - dropped


def counts(connection: Connection, source: str) -> dict[tuple[str, str], tuple[int, int]]:
    """Counts quarantined records, and keys that lack a value, by view and store."""
    try:
        rows = connection.execute(_COUNTS, (UNRESOLVED, source)).fetchall()
    except errors.UndefinedTable:
        return {}  # nothing was ever captured here
    return {(view, store): (waiting, unresolved) for view, store, waiting, unresolved in rows}


def _rows(
    connection: Connection, kind: type[_T], query: str, source: str, picked: KeySelection
) -> list[_T]:
    with translated_errors():
        try:
            with connection.cursor(row_factory=class_row(kind)) as cursor:
                return cursor.execute(query.encode(), _parameters(source, picked)).fetchall()
        except errors.UndefinedTable:
            return []  # nothing was ever captured here


def _parameters(source: str, picked: KeySelection) -> dict[str, Any]:
    return {
        "source": source,
        "behind": BEHIND,
        "own_way": [BEHIND, UNRESOLVED],
        "view": picked.view,
        "store": picked.store,
        "key": picked.key,
        "code": picked.cause,
    }
