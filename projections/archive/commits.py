"""Commits: which archived records belong to transactions that had committed by some moment.

A record names the commit that preceded its own transaction's commit, not that commit itself. When
a named commit happened, the transactions whose records name an earlier commit had committed, and
those whose records name it or a later one had not. A moment is therefore rounded down to the newest
commit that the archive names and that is not later. A moment by the clock ends before the first
transaction, in the order of commits, that committed later.

A row of a snapshot may contain changes that were committed while the snapshot ran. It counts if its
record was sent before the last commit that counts, by the clocks of the reader and of the source,
which may differ by `CLOCKS_APART_US`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.lsn import Lsn
from projections.archive.survey import RecordFilter, flags, integers, versions_of
from projections.errors import MomentUnreadableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.archive.fold import Flags, Integers
    from projections.archive.scan import ArchiveScan

CLOCKS_APART_US: Final = 1_000_000
_COLUMNS: Final = ("epoch", "commit_lsn", "lsn", "committed_at", "recorded_at", "op", "topic")
_ALIGNMENT: Final = 8
_EVERY: Final[Mapping[str, int]] = MappingProxyType({})
_LATER: Final = "a moment that the archive has reached; headwater query answers as of now"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time or a position.

    Attributes:
        lsn: A log position.
        at_us: A time, microseconds since 1970, UTC; None with a position. Without both, it is the
            last moment in the archive.
        epoch: Incarnation of the source; None for the newest.
    """

    lsn: Lsn | None = None
    at_us: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """The commit that a moment is rounded down to.

    Attributes:
        epoch: Incarnation of the source.
        commit: The commit; everything up to it counts, nothing later.
        at_us: The latest commit time up to there, microseconds since 1970, UTC.
    """

    epoch: int
    commit: Lsn
    at_us: int


class Commits:
    """The commits that an archive names, in all its topics.

    Args:
        scan: The archive, with every topic.
    """

    def __init__(self, scan: ArchiveScan) -> None:
        self._scan = scan
        self._of: dict[int, tuple[Integers, Integers, Integers]] = {}
        self._sent: dict[tuple[str, int, int], int] = {}
        pairs_by_epoch: dict[int, list[Integers]] = {}
        for _, batch in scan.read(_COLUMNS):
            streamed = flags(batch.column("op").is_valid()) & ~was_read(batch)
            self._note_reads(batch)
            epochs, before = integers(batch.column("epoch")), integers(batch.column("commit_lsn"))
            at_us = integers(batch.column("committed_at").cast(pa.int64()))
            for epoch in np.unique(epochs[streamed]).tolist():
                own = streamed & (epochs == epoch)
                pairs = np.unique(np.stack([before[own], at_us[own]]), axis=1)
                pairs_by_epoch.setdefault(epoch, []).append(pairs)
        for epoch, parts in pairs_by_epoch.items():
            commits, at_us = np.unique(np.concatenate(parts, axis=1), axis=1)
            names, starts = np.unique(commits, return_index=True)
            # for the transaction after each commit, and for all earlier ones
            latest = np.maximum.reduceat(at_us, starts)
            self._of[epoch] = names, latest, np.maximum.accumulate(latest)

    @property
    def newest_epoch(self) -> int:
        """Returns the newest incarnation with a commit; 0 if there is none."""
        return max(self._of, default=0)

    def reached(self, moment: Moment) -> Reached:
        """Returns the commit that a moment is rounded down to.

        Raises:
            MomentUnreadableError: The archive names no commit by then, or ends before the moment.
        """
        epoch = self.newest_epoch if moment.epoch is None else moment.epoch
        names, latest, running_latest = self._of.get(epoch, (_NONE, _NONE, _NONE))
        if not len(names) or names[-1] == 0:
            raise MomentUnreadableError("the archive names no commit yet", hint=_LATER)
        place = len(names) - 1
        if moment.lsn is not None:
            place = int(np.searchsorted(names, moment.lsn.value, side="right")) - 1
            if moment.lsn.value > names[-1]:
                raise self._not_reached(epoch)
        elif moment.at_us is not None:
            later = np.flatnonzero(latest > moment.at_us)
            if not len(later):
                raise self._not_reached(epoch)
            place = int(later[0])
        if place <= 0 or names[place] == 0:
            raise self.too_early(epoch, int(running_latest[0]))
        return Reached(epoch, Lsn(int(names[place])), int(running_latest[place - 1]))

    def too_early(self, epoch: int, since_us: int) -> MomentUnreadableError:
        """Returns the error for a moment before the first one in the archive.

        Args:
            epoch: Incarnation of the source.
            since_us: Time of the last change that must be counted.
        """
        names, _, running_latest = self._of.get(epoch, (_NONE, _NONE, _NONE))
        place = int(np.searchsorted(running_latest, since_us, side="left")) + 1
        known = place < len(names)
        first = (
            f"the first is {_described(names[place], running_latest[place - 1])}"
            if known
            else "none yet"
        )
        return MomentUnreadableError(
            "the archive does not have the rows of that moment",
            detail=first,
            hint="rows of a snapshot contain changes that were committed while it ran: the rows"
            " before the end of the first snapshot are unknown",
        )

    def read_until_us(self, topic: str, epoch: int, lsn: int | None) -> int | None:
        """Returns when the last row of a snapshot was sent; None if none was.

        Args:
            topic: The topic.
            epoch: Incarnation of the source.
            lsn: Log position of the snapshot; None for the first one of the incarnation.
        """
        of_topic = {
            place: sent
            for (name, era, place), sent in self._sent.items()
            if (name, era) == (topic, epoch)
        }
        return of_topic.get(min(of_topic, default=0) if lsn is None else lsn)

    def _note_reads(self, batch: pa.RecordBatch) -> None:
        own = batch.filter(pa.array(was_read(batch) & flags(pc.equal(batch.column("op"), "r"))))
        if not own.num_rows:
            return
        table = pa.Table.from_batches([own]).select(["topic", "epoch", "lsn", "recorded_at"])
        table = table.set_column(0, "topic", table.column("topic").cast(pa.string()))
        sent = table.group_by(["topic", "epoch", "lsn"]).aggregate([("recorded_at", "max")])
        for row in sent.to_pylist():
            place = row["topic"], row["epoch"], row["lsn"]
            at_us = _microseconds(row["recorded_at_max"])
            self._sent[place] = max(at_us, self._sent.get(place, 0))

    def _not_reached(self, epoch: int) -> MomentUnreadableError:
        names, _, running_latest = self._of[epoch]
        last = max(len(names) - 2, 0)
        return MomentUnreadableError(
            "the archive does not reach that moment yet",
            detail=f"it ends at {_described(names[-1], running_latest[last])}",
            hint=_LATER,
        )


class CommittedBy(RecordFilter):
    """Filters records of transactions that had committed by then.

    Args:
        reached: The last commit that counts.
        last_reads: By topic, the version of the newest snapshot whose rows count; in other topics,
            the rows of every snapshot count.
    """

    def __init__(self, reached: Reached, last_reads: Mapping[str, int] = _EVERY) -> None:
        super().__init__()
        self._reached = reached
        self._last_reads = last_reads

    @property
    def columns(self) -> tuple[str, ...]:
        """Returns the columns that it reads, in addition to offset and key."""
        return ("commit_lsn", "recorded_at")

    def there(self, topic: str, batch: pa.RecordBatch) -> Flags:
        """Returns whether each record belongs to such a transaction."""
        reached = self._reached
        epochs, before = integers(batch.column("epoch")), integers(batch.column("commit_lsn"))
        sent_us = integers(batch.column("recorded_at").cast(pa.int64()))
        seen = sent_us + CLOCKS_APART_US <= reached.at_us
        whole = seen & self._of_whole_read(topic, batch)
        counts = np.where(was_read(batch), whole, before < reached.commit.value)
        # an unreadable record has no log position: its send time decides
        counts = np.where(flags(batch.column("op").is_null()), seen, counts)
        accepted: Flags = (epochs < reached.epoch) & (epochs > 0) | (
            (epochs == reached.epoch) | (epochs == 0)
        ) & counts
        return accepted

    def _of_whole_read(self, topic: str, batch: pa.RecordBatch) -> Flags | bool:
        last = self._last_reads.get(topic)
        if last is None:
            return True
        accepted: Flags = versions_of(batch) <= last
        return accepted


def was_read(batch: pa.RecordBatch) -> Flags:
    """Returns whether each record is a row of a snapshot, without a log position."""
    result: Flags = integers(batch.column("lsn")) % _ALIGNMENT != 0
    return result


_NONE: Final = np.empty(0, np.int64)


def _described(lsn: int, at_us: int) -> str:
    at = datetime.fromtimestamp(int(at_us) / 1e6, UTC)
    return f"{Lsn(int(lsn))}, {at.isoformat(timespec='seconds')}"


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)
