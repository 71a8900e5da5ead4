"""Through which position each view was verified, in the source: `headwater.view_verifications`."""

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

# what was verified once stays so: a later look that finds something wrong says so beside it
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
    """What the last verification of a view in a store has found.

    Attributes:
        view: The view.
        store: The store.
        verified_through: Position through which it was found equal to its source last; None if it
            never was.
        verified_at: When that was.
        looked_at: When it was looked at last.
        rows: Rows of the source.
        missing: Rows that only the source had.
        extra: Rows that only the store had.
        different: Rows that differed.
        quarantined: Keys that were wrong because a record waits.
        moving: Keys that did not hold still.
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
        """Whether nothing was wrong when it was looked at last."""
        return not (self.missing or self.extra or self.different or self.quarantined)


def publish(
    connection: psycopg.Connection[Any], source: str, reports: Iterable[ViewReport]
) -> None:
    """Publishes what a verification has found; a source that has no place for it is left alone."""
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
    """Reads what was found of a source's views."""
    try:
        rows = connection.execute(_READ, (source,)).fetchall()
    except psycopg.errors.UndefinedTable:
        return []  # captured by an older program so far
    return [
        Verified(view, Store(store), None if lsn is None else Lsn.parse(lsn), *rest)
        for view, store, lsn, *rest in rows
    ]
