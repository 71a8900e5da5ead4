"""Boundary: where the tables of a group can be read together, without a partial transaction.

The table job reads records in batches that end anywhere: within a transaction, or with one topic
ahead of another. `Frontier` determines the position through which a batch and its predecessors are
complete. Records of later transactions are recognised by their own data: each names the commit
before its own transaction. Commits have one order. For any known commit at or before the position,
a transaction that names that commit or a later one is beyond it, and every other one has committed
by then. Records beyond it are applied last, and just before that the tables are exactly at that
commit.

A connector's first transaction names no earlier commit; every named commit is its own or a later
one. A row of a snapshot contains every transaction that had committed when it was read.
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
"""Records of one topic, in offset order."""


@dataclass(frozen=True, slots=True)
class CompleteThrough:
    """The position through which a batch and its predecessors lack nothing.

    Attributes:
        epoch: Incarnation of the source.
        lsn: The position, in bytes.
        views: Each complete view, with the position since when it is complete, in bytes; tables of
            other views are still being read.
    """

    epoch: int
    lsn: int
    views: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnpublishedProgress:
    """The progress of the tables beyond their last boundary; carried from batch to batch.

    Attributes:
        epoch: Incarnation of the source for the positions.
        after_commit: Greatest preceding commit of any transaction with an applied record; -1 if
            none was.
        read_lsn: Greatest position of a snapshot row.
        commit: Greatest known commit.
    """

    epoch: int = 0
    after_commit: int = _NOTHING
    read_lsn: int = 0
    commit: int = 0


class DividedBatch(NamedTuple):
    """A batch, divided at a boundary.

    Attributes:
        within: Records committed by the boundary.
        beyond: Later records.
        boundary: The boundary of the tables once `within` is applied, in bytes; None if a
            transaction would be partial there.
        settled: Progress of the tables beyond it once `within` is applied.
        ahead: Progress of the tables beyond it once everything is applied.
    """

    within: list[Run]
    beyond: list[Run]
    boundary: int | None
    settled: UnpublishedProgress
    ahead: UnpublishedProgress


class RecordPosition(NamedTuple):
    """The log position of a record.

    Attributes:
        epoch: Incarnation of the source.
        after_commit: Commit before its transaction; 0 for a connector's first, -1 for a snapshot
            row.
        read_lsn: Position of a snapshot row; 0 for a change.
    """

    epoch: int
    after_commit: int
    read_lsn: int


def divide(
    runs: Iterable[Run],
    topics: frozenset[str],
    reach: CompleteThrough | None,
    ahead: UnpublishedProgress,
) -> DividedBatch:
    """Divides the records of a batch at its last boundary.

    Args:
        runs: All records of the batch.
        topics: Topics whose records are applied; others only contribute commits.
        reach: Position through which they are complete; None if unknown: then all are beyond.
        ahead: Progress of the tables beyond their last boundary.
    """
    placed = [
        (topic, [(record, position_of(record)) for record in records]) for topic, records in runs
    ]
    places = [(topic, place) for topic, records in placed for _, place in records if place]
    epoch = max((place.epoch for _, place in places), default=ahead.epoch)
    if epoch > ahead.epoch:
        ahead = UnpublishedProgress(epoch)  # every table is read again
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
    over = ahead.after_commit < known  # records applied early are now within the boundary
    settled = UnpublishedProgress(
        epoch, _NOTHING if over else ahead.after_commit, ahead.read_lsn, max(commits)
    )
    left = replace(
        settled,
        after_commit=max([settled.after_commit, *later]),
        read_lsn=max([settled.read_lsn, *outer]),
    )

    def beyond(place: RecordPosition | None) -> bool:
        # a record without a position, or of an earlier epoch, is applied in order
        if place is None or place.epoch < epoch:
            return False
        return place.after_commit >= known or place.read_lsn > readable

    applied = [(topic, records) for topic, records in placed if topic in topics]
    return DividedBatch(
        [(topic, [r for r, place in records if not beyond(place)]) for topic, records in applied],
        [(topic, [r for r, place in records if beyond(place)]) for topic, records in applied],
        boundary,
        settled,
        left,
    )


def with_applied(
    ahead: UnpublishedProgress, epoch: int, after_commit: int, read_lsn: int, *, applied: bool
) -> UnpublishedProgress:
    """Returns the progress once records are applied as they come, without a boundary.

    Of any cut of a batch, the last result is what `divide` returns for all of it without a reach.

    Args:
        ahead: The progress before.
        epoch: Incarnation of the source for the records.
        after_commit: Greatest commit before one of their transactions; -1 if all are snapshot rows.
        read_lsn: Greatest position of a snapshot row; 0 if there is none.
        applied: Whether they are applied; others only contribute commits.
    """
    if epoch < ahead.epoch:
        return ahead
    if epoch > ahead.epoch:
        ahead = UnpublishedProgress(epoch)  # every table is read again
    known = replace(ahead, commit=max(ahead.commit, after_commit))
    if not applied:
        return known
    return replace(
        known,
        after_commit=max(known.after_commit, after_commit),
        read_lsn=max(known.read_lsn, read_lsn),
    )


def _boundary(
    reached: int | None, known: int, ahead: UnpublishedProgress, *, whole: bool
) -> int | None:
    """Returns the boundary of the tables once everything not beyond a commit is applied."""
    if reached is None or known <= ahead.after_commit:
        return None  # part of a transaction beyond it was applied before
    boundary = reached if whole else known
    return boundary if boundary > 0 and ahead.read_lsn <= boundary else None


def position_of(record: Record | tuple[Any, ...]) -> RecordPosition | None:
    """Returns the log position of a record; None if it lacks the connector's usual form.

    It searches the bytes backwards: the user's data comes earlier, with its quotes escaped.
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
