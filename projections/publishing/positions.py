"""The position of each view in each store, in the source database: `headwater.view_positions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.lsn import Lsn
from projections.definition.views import Store, view_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    import psycopg

# a position never decreases: a restarted job knows less than its predecessor
_PUBLISH = """
INSERT INTO headwater.view_positions AS p (view, store, source, applied_through, updated_at)
SELECT given.view, given.store, %s, %s::pg_lsn, now()
FROM unnest(%s::text[], %s::text[]) AS given (view, store)
ON CONFLICT (view, store) DO UPDATE
SET source = excluded.source, applied_through = excluded.applied_through, updated_at = now()
WHERE p.applied_through IS NULL OR p.applied_through < excluded.applied_through
   OR p.source <> excluded.source
"""
_LEAVE_READERS: Final = """
DELETE FROM headwater.view_positions AS p
 WHERE starts_with(p.source, %s) AND NOT EXISTS (
    SELECT FROM unnest(%s::text[], %s::text[]) AS given (view, store)
     WHERE (given.view, given.store) = (p.view, p.store))
"""
_WITHDRAW = "DELETE FROM headwater.view_positions WHERE view = ANY(%s) AND store = %s"
_READ = """
SELECT view, store, source, applied_through::text, updated_at
FROM headwater.view_positions WHERE applied_through IS NOT NULL ORDER BY view, store
"""
_CONFIRMED = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"


@dataclass(frozen=True, slots=True)
class ViewPosition:
    """The position of a view in a store.

    Attributes:
        view: Its name.
        store: The store.
        source: Name of the source; `source/other` for a view that the job of another source
            maintains.
        applied_through: The view has everything committed up to here.
        updated_at: Time of its last advance.
    """

    view: str
    store: Store
    source: str
    applied_through: Lsn
    updated_at: datetime


def read(connection: psycopg.Connection[Any]) -> list[ViewPosition]:
    """Reads all published positions."""
    rows = connection.execute(_READ).fetchall()
    return [
        ViewPosition(view, Store(store), source, Lsn.parse(lsn), updated_at)
        for view, store, source, lsn, updated_at in rows
    ]


def publish(
    connection: psycopg.Connection[Any],
    source: str,
    views: Iterable[tuple[str, Store]],
    applied_through: Lsn,
) -> None:
    """Publishes a position for views, except where it is not ahead of the present one."""
    names, stores = zip(*sorted(views), strict=True)
    # one statement: a row per view would keep the source busy, though most views are idle
    given = source, str(applied_through), list(names), list(map(str, stores))
    connection.execute(_PUBLISH, given)


def publish_readers(
    connection: psycopg.Connection[Any],
    source: str,
    reached: Mapping[tuple[str, Store], Lsn],
    owners: Mapping[str, str],
) -> None:
    """Publishes the positions of views over several sources in one of them, and deletes all others.

    Args:
        connection: To that source.
        source: Its name.
        reached: Position in its log, by physical name and store.
        owners: For each view, the source whose job maintains it.
    """
    views, stores = [place for place, _ in reached], [str(store) for _, store in reached]
    connection.execute(_LEAVE_READERS, (f"{source}/", views, stores))
    for (place, store), lsn in reached.items():
        owner = owners[view_of(place)]
        publish(connection, f"{source}/{owner}", [(place, store)], lsn)


def of_source(position: ViewPosition, source: str) -> bool:
    """Returns whether a position is in the log of a source."""
    return position.source.partition("/")[0] == source


def withdraw(connection: psycopg.Connection[Any], views: Sequence[str], store: Store) -> None:
    """Deletes the positions of views in a store that has lost them."""
    connection.execute(_WITHDRAW, (list(views), str(store)))


def confirmed(connection: psycopg.Connection[Any], slot: str) -> Lsn | None:
    """Returns a slot's confirmed position; None if the slot does not exist."""
    row = connection.execute(_CONFIRMED, (slot,)).fetchone()
    return None if row is None or row[0] is None else Lsn.parse(row[0])
