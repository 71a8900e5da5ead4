"""Boundary: where the tables of a group can be read together, without a partial transaction.

The table job reads records in batches that end anywhere: within a transaction, or with one topic
ahead of another. `Frontier` determines the position through which a batch and its predecessors are
complete. Records of later transactions are recognised by their own data: each names the commit
before its own transaction. Commits have one order. For any known commit at or before the position,
a transaction that names that commit or a later one is beyond it, and every other one has committed
by then. Records beyond it are applied last, and just before that the tables are exactly at that
commit.

The very first transaction of a connector names no commit before it; every commit that is named
comes after it, or is its own. A row of a snapshot contains what had committed when it was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from projections.changes.record import Record

_SEQUENCE: Final = b'"sequence":"['
_OPERATION: Final = b'"op":"'
_READ: Final = ord("r")
_NOTHING: Final = -1

Run = tuple[str, "Sequence[Record | tuple[Any, ...]]"]
"""Records of one topic, in their order."""


@dataclass(frozen=True, slots=True)
class CompleteThrough:
    """A position through which nothing is missing in a batch and those before it.

    Attributes:
        epoch: Incarnation of the source.
        lsn: The position, in bytes.
        views: By view that is whole, since which position it is, in bytes; the tables of the
            others are still being read.
    """

    epoch: int
    lsn: int
    views: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What the tables have beyond their last boundary; kept from batch to batch.

    Attributes:
        epoch: Incarnation of the source that the places are of.
        after_commit: Of the transactions of which something was applied, the greatest commit before
            one; -1 if nothing was.
        read_lsn: Greatest position of a row that was read.
        commit: Greatest commit that was seen.
    """

    epoch: int = 0
    after_commit: int = _NOTHING
    read_lsn: int = 0
    commit: int = 0


class Division(NamedTuple):
    """A batch, divided.

    Attributes:
        within: What has committed by the boundary.
        beyond: What follows.
        boundary: Where the tables stand, in bytes, once `within` is applied; None if that is amid
            a transaction.
        settled: What they have beyond it when `within` alone is applied.
        ahead: What they have beyond it when all is applied.
    """

    within: list[Run]
    beyond: list[Run]
    boundary: int | None
    settled: Ahead
    ahead: Ahead


class RecordPosition(NamedTuple):
    """Where a record lies.

    Attributes:
        epoch: Incarnation of the source.
        after_commit: Commit before its transaction; 0 of a connector's first; -1 of a read row.
        read_lsn: Position that a row stands for which was read; 0 of a change.
    """

    epoch: int
    after_commit: int
    read_lsn: int


def divide(
    runs: Iterable[Run], topics: frozenset[str], reach: CompleteThrough | None, ahead: Ahead
) -> Division:
    """Divides the records of a batch at the last boundary that it has.

    Args:
        runs: All of them.
        topics: Topics whose records are applied; those of others only tell of commits.
        reach: How far they are complete; None if unknown: then all lies beyond.
        ahead: What the tables have already beyond their last boundary.
    """
    found = [(topic, [(record, place_of(record)) for record in records]) for topic, records in runs]
    places = [(topic, place) for topic, records in found for _, place in records if place]
    epoch = max((place.epoch for _, place in places), default=ahead.epoch)
    if epoch > ahead.epoch:
        ahead = Ahead(epoch)  # every table is read anew: what was before counts no more
    places = [(topic, place) for topic, place in places if place.epoch == epoch]
    reached = reach.lsn if reach is not None and reach.epoch == epoch else None
    commits = [ahead.commit, *(place.after_commit for _, place in places)]
    known = max((c for c in commits if 0 < c <= (reached or 0)), default=0)
    later = [
        place.after_commit
        for topic, place in places
        if topic in topics and place.after_commit >= known
    ]
    boundary = _boundary(reached, known, ahead, whole=not later)
    readable = known if boundary is None else boundary
    outer = [
        place.read_lsn for topic, place in places if topic in topics and place.read_lsn > readable
    ]
    over = ahead.after_commit < known  # what was applied early has been reached
    settled = Ahead(epoch, _NOTHING if over else ahead.after_commit, ahead.read_lsn, max(commits))
    left = replace(
        settled,
        after_commit=max([settled.after_commit, *later]),
        read_lsn=max([settled.read_lsn, *outer]),
    )

    def beyond(place: RecordPosition | None) -> bool:
        # whatever has no place, or one of an earlier epoch, comes as it is
        if place is None or place.epoch < epoch:
            return False
        return place.after_commit >= known or place.read_lsn > readable

    applied = [(topic, records) for topic, records in found if topic in topics]
    return Division(
        [(topic, [r for r, place in records if not beyond(place)]) for topic, records in applied],
        [(topic, [r for r, place in records if beyond(place)]) for topic, records in applied],
        boundary,
        settled,
        left,
    )


def _boundary(reached: int | None, known: int, ahead: Ahead, *, whole: bool) -> int | None:
    """Where the tables stand once everything is applied that is not beyond a commit."""
    if reached is None or known <= ahead.after_commit:
        return None  # something of a transaction beyond it was applied before
    boundary = reached if whole else known
    return boundary if boundary > 0 and ahead.read_lsn <= boundary else None


def place_of(record: Record | tuple[Any, ...]) -> RecordPosition | None:
    """Returns where a record lies; None if it does not say so in the connector's way.

    It is read off the bytes: a user's data lies before it, and has its quotes escaped.
    """
    value, epoch = record[1], record[2]
    if value is None or epoch is None:
        return None
    start = value.rfind(_SEQUENCE)
    end = value.find(b"]", start)
    operation = value.rfind(_OPERATION)
    if start < 0 or end < 0 or operation < 0:
        return None
    commit, _, lsn = value[start + len(_SEQUENCE) : end].partition(b",")
    try:
        if value[operation + len(_OPERATION)] == _READ:
            return RecordPosition(int(epoch), _NOTHING, int(lsn.strip(b'\\"')))
        return RecordPosition(int(epoch), 0 if commit == b"null" else int(commit.strip(b'\\"')), 0)
    except (ValueError, IndexError):
        return None
