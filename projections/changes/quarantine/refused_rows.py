"""Quarantined rows of derived views: rows that search or the cache cannot hold.

Such a row is in the table of its view, so only its key is recorded here, with the cause. A later
change of the row replaces it, so nothing waits behind it: there is at most one record for each key.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from projections.changes.quarantine.table import connect, translated_errors
from projections.errors import QuarantineFullError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from foundation.errors import PlatformError
    from projections.changes.quarantine.table import Connection
    from projections.definition.views import Store
    from projections.planning.job_config import LedgerAddress

TABLE_PREFIX: Final = "table/"
"""Starts the origin of such a row, where a record has its topic; no topic's name has a slash."""

WAITING: Final = "waiting"
RETRY: Final = "retry"
"""States of a row that is quarantined, and of one that is to be written again."""

_PUT: Final = """
INSERT INTO headwater.quarantine AS q (view, store, topic, partition, record_offset, source, key,
       version, code, message, detail, hint, attempts, tried_at, digest)
VALUES (%(view)s, %(store)s, %(topic)s, 0, %(offset)s, %(source)s, %(key)s,
       %(version)s, %(code)s, %(message)s, %(detail)s, %(hint)s, 1, clock_timestamp(), %(digest)s)
ON CONFLICT (view, store, topic, partition, record_offset) DO UPDATE
   SET state = 'waiting', version = excluded.version, code = excluded.code,
       message = excluded.message, detail = excluded.detail, hint = excluded.hint,
       attempts = q.attempts + 1, tried_at = excluded.tried_at, last_seen_at = clock_timestamp(),
       settled_at = NULL
"""
_DELETE_WRITTEN: Final = """
DELETE FROM headwater.quarantine
 WHERE source = %s AND store = %s AND view = %s AND topic = %s AND key = ANY(%s)
"""
_DELETE_OLDER: Final = """
DELETE FROM headwater.quarantine
 WHERE source = %s AND store = %s AND view = %s AND topic = %s AND version < %s
"""
_COUNT: Final = """
SELECT count(*) FROM headwater.quarantine
 WHERE source = %s AND store = %s AND view = %s AND state IN ('waiting', 'retry')
"""
_STATES: Final = """
SELECT view, key, state FROM headwater.quarantine
 WHERE source = %s AND store = %s AND view = ANY(%s) AND topic = %s || view
"""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A row that a store cannot hold.

    Attributes:
        key: Its key, as JSON.
        version: Version of the change that was refused.
        error: The cause.
    """

    key: str
    version: int
    error: PlatformError


@dataclass(frozen=True, slots=True)
class DeliveredRows:
    """The rows of one delivery that concern the quarantine.

    Attributes:
        view: Name of the view.
        refused: Rows that the store cannot hold.
        written: Keys that were quarantined and are written.
        below: Version below which no row is in the store any more, because all were written; 0 if
            only some were.
    """

    view: str
    refused: Sequence[RefusedRow]
    written: Collection[str]
    below: int = 0


def settle(address: LedgerAddress, store: Store, rows: DeliveredRows) -> None:
    """Quarantines the refused rows of a delivery, and releases the written ones.

    Raises:
        QuarantineFullError: The view has more quarantined rows than permitted; they are stored.
        QuarantineDownError: The database does not answer.
    """
    place = address.source, str(store), rows.view, TABLE_PREFIX + rows.view
    with connect(address) as connection, translated_errors():
        with connection.transaction(), connection.cursor() as cursor:
            if rows.refused:
                cursor.executemany(_PUT, [_fields(place, each) for each in rows.refused])
            if rows.written:
                cursor.execute(_DELETE_WRITTEN, (*place, sorted(rows.written)))
            if rows.below:
                cursor.execute(_DELETE_OLDER, (*place, rows.below))
        if not rows.refused:
            return
        (count,) = connection.execute(_COUNT, place[:3]).fetchone() or (0,)
    if count > address.rows_max:
        raise QuarantineFullError(
            f"view {rows.view}: too many quarantined rows in {store}",
            detail=f"{count} rows, limit {address.rows_max}",
            hint="headwater quarantine list shows the causes; raise quarantine.rows_max to allow"
            " more",
            view=rows.view,
        )


def states(
    connection: Connection, source: str, store: Store, views: Iterable[str]
) -> Mapping[str, Mapping[str, str]]:
    """Returns the state of each quarantined or discarded row, by view and key.

    Raises:
        QuarantineDownError: The database does not answer.
    """
    by_view: dict[str, dict[str, str]] = defaultdict(dict)
    with translated_errors():
        rows = connection.execute(_STATES, (source, str(store), sorted(views), TABLE_PREFIX))
        for view, key, state in rows.fetchall():
            by_view[view][key] = state
    return by_view


def _fields(place: tuple[str, str, str, str], row: RefusedRow) -> dict[str, Any]:
    source, store, view, topic = place
    digest = hashlib.blake2b(row.key.encode(), digest_size=16).digest()
    return {
        "source": source,
        "store": store,
        "view": view,
        "topic": topic,
        "offset": int.from_bytes(digest[:8], "big") >> 1,  # a bigint, which has a sign
        "key": row.key,
        "version": row.version,
        "code": row.error.code,
        "message": row.error.message,
        "detail": row.error.detail,
        "hint": row.error.hint,
        "digest": digest,
    }
