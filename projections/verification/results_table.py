"""The last verification of each view, in the source: `headwater.view_verifications`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdc.lsn import Lsn
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from projections.verification.report import ViewReport

# a later comparison with differences keeps the earlier verified position
_PUBLISH: Final = """
INSERT INTO headwater.view_verifications AS v (view, store, source, verified_through, verified_at,
       rows, missing, extra, different, quarantined, moving)
VALUES (%(view)s, %(store)s, %(source)s, %(through)s::pg_lsn,
        CASE WHEN %(through)s IS NOT NULL THEN clock_timestamp() END,
        %(rows)s, %(missing)s, %(extra)s, %(different)s, %(quarantined)s, %(moving)s)
ON CONFLICT (view, store) DO UPDATE
   SET source = excluded.source, looked_at = clock_timestamp(), rows = excluded.rows,
       missing = excluded.missing, extra = excluded.extra, different = excluded.different,
       quarantined = excluded.quarantined, moving = excluded.moving,
       verified_through = coalesce(excluded.verified_through, v.verified_through),
       verified_at = coalesce(excluded.verified_at, v.verified_at)
"""
_READ: Final = """
SELECT view, store, verified_through::text, verified_at, looked_at, rows, missing, extra, different,
       quarantined, moving
  FROM headwater.view_verifications WHERE source = %s ORDER BY view, store
"""

_COUNTS: Final = ("rows", "missing", "extra", "different", "quarantined", "moving")


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of the last verification of a view in a store.

    Attributes:
        view: The view.
        store: The store.
        verified_through: Last position through which it equalled its source; None if it never did.
        verified_at: Time of that verification.
        looked_at: Time of the last verification.
        rows: Number of rows of the source.
        missing: Number of rows that only the source had.
        extra: Number of rows that only the store had.
        different: Number of rows that differed.
        quarantined: Number of keys that differed because a record is quarantined.
        moving: Number of keys that changed during every comparison.
    """

    view: str
    store: Store
    verified_through: Lsn | None
    verified_at: datetime | None
    looked_at: datetime
    rows: int
    missing: int
    extra: int
    different: int
    quarantined: int
    moving: int

    @property
    def equal(self) -> bool:
        """Returns whether the last verification had no differences."""
        return not (self.missing or self.extra or self.different or self.quarantined)


def publish(
    connection: psycopg.Connection[Any], source: str, reports: Iterable[ViewReport]
) -> None:
    """Publishes the results of a verification; does nothing in a source without the table."""
    for report in reports:
        through = report.verified_through
        values = {
            "view": report.view,
            "store": str(report.store),
            "source": source,
            "through": None if through is None else str(through),
            **{name: getattr(report, name) for name in _COUNTS},
        }
        try:
            connection.execute(_PUBLISH, values)
        except psycopg.errors.UndefinedTable:
            return


def read(connection: psycopg.Connection[Any], source: str) -> list[Verified]:
    """Returns the results for a source's views."""
    try:
        rows = connection.execute(_READ, (source,)).fetchall()
    except psycopg.errors.UndefinedTable:
        return []  # captured by an earlier release
    return [
        Verified(view, Store(store), None if lsn is None else Lsn.parse(lsn), *rest)
        for view, store, lsn, *rest in rows
    ]
