"""Sweeps: removal of rows that a whole-table snapshot did not find.

Such a row was deleted while nothing was captured, so no topic has its delete. The snapshot sends
every existing row with one position. Once a view has applied the whole snapshot, every row with an
older version no longer exists in the source. A view of several tables is swept up to the oldest of
their newest snapshots, because every row of each table was sent with that version or a newer one.
Until then the view has surplus rows, and reports no position.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cdc.position import ChangePosition
from cdc.snapshot import reads
from projections.changes.row_change import ReadSpan
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import psycopg

    from cdc.snapshot.reads import WholeRead
    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan

_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_SWEPT_VERSIONS: Final = (
    "SELECT view, store, max(below_version) FROM headwater.sweeps GROUP BY view, store"
)
_NOTE: Final = """
INSERT INTO headwater.sweeps (view, store, below_version, removed) VALUES (%s, %s, %s, %s)
ON CONFLICT (view, store, below_version) DO UPDATE
SET removed = headwater.sweeps.removed + excluded.removed, swept_at = clock_timestamp()
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A pending removal of rows from a view.

    Attributes:
        below_version: Rows of older versions no longer exist in the source.
        ends: Offsets below which everything must have been applied first.
    """

    below_version: int
    ends: Mapping[tuple[str, int], int]

    def covered_by(self, applied: Offsets) -> bool:
        """Returns whether a store that has every record below these offsets may be swept."""
        return all(not end or applied.get(place, 0) >= end for place, end in self.ends.items())


def applied(committed: Offsets, waiting: Offsets) -> Offsets:
    """Returns the offsets below which a store has every record.

    A finished batch of the tables may have left records beyond its boundary to the next batch. A
    sweep before that would end the rows of a history and begin new ones.

    Args:
        committed: The offsets that the store's query has finished.
        waiting: The first such record of each partition, read after `committed`.
    """
    return {place: min(end, waiting.get(place, end)) for place, end in committed.items()}


def due(plan: ViewPlan, whole: Mapping[str, WholeRead]) -> Sweep | None:
    """Returns the sweep that the newest whole-table snapshots permit; None without them.

    Args:
        plan: The view.
        whole: The newest completed whole-table snapshot, by topic.
    """
    topics = _topics(plan)
    below_version = _below_version(topics, whole)
    if below_version is None:
        return None
    ends = {
        (topic, partition): end
        for topic in topics
        for partition, end in whole[topic].end_offsets.items()
    }
    return Sweep(below_version, ends)


def _topics(plan: ViewPlan) -> list[str]:
    return [plan.topic] if plan.events is None else list(plan.topics)


def _below_version(topics: Iterable[str], whole: Mapping[str, WholeRead]) -> int | None:
    if not all(topic in whole for topic in topics):
        return None
    of_topics = (whole[topic] for topic in topics)
    return min(ChangePosition.of_read(read.epoch, read.read_lsn).version for read in of_topics)


def pending(
    plan: ViewPlan,
    store: Store,
    whole: Mapping[str, WholeRead],
    swept: Mapping[tuple[str, Store], int],
) -> Sweep | None:
    """Returns the pending sweep of a view in a store; None if there is none.

    Args:
        plan: The view.
        store: The store.
        whole: The newest completed whole-table snapshot, by topic.
        swept: The version up to which each view was swept, by view and store.
    """
    # while rows of a new shape are quarantined, the view lacks rows of the snapshot
    below_version = None if plan.behind else _below_version(_topics(plan), whole)
    if below_version is None or swept.get((plan.name, store), 0) >= below_version:
        return None  # nearly always; called several times a second for each view and store
    return due(plan, whole)


def spans(connection: psycopg.Connection[Any], plan: ViewPlan) -> tuple[ReadSpan, ...]:
    """Returns the whole-table snapshots for a history; empty for other views."""
    if plan.history is None:
        return ()
    rows = reads.whole_spans(connection, plan.source, plan.topics)
    return tuple(span(place, begun, ended) for place, begun, ended in rows)


def span(place: ChangePosition, begun: datetime, ended: datetime) -> ReadSpan:
    """Returns a whole-table snapshot for a history: its log position and time."""
    at_us, until_us = ((at - _BEGINNING) // _MICROSECOND for at in (begun, ended))
    return ReadSpan(place.version, at_us, until_us)


def swept_versions(connection: psycopg.Connection[Any]) -> dict[tuple[str, Store], int]:
    """Returns the version up to which each view was swept in each store."""
    rows = connection.execute(_SWEPT_VERSIONS).fetchall()
    return {(view, Store(store)): version for view, store, version in rows}


def note(
    connection: psycopg.Connection[Any], view: str, store: Store, sweep: Sweep, removed: int
) -> None:
    """Records permanently that a view was swept."""
    connection.execute(_NOTE, (view, store, sweep.below_version, removed))
