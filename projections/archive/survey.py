"""Survey: the first pass over an archive, which decodes nothing.

It determines where the records of each topic begin and end and how they are ordered, and folds the
keys of topics that need only the newest record of a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.position import VERSION_LSN_BITS
from cdc.values import UNCHANGED_MARKS
from projections.archive.fold import Fold, KeyedRecords, old_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from projections.archive.fold import Flags, FoldedRows, Integers
    from projections.archive.scan import ArchiveScan, Block
    from projections.common.offsets import Offsets

SAMPLED_EVERY: Final = 1024
"""Number of a topic's offsets in the sample that determines where it is divided."""

_COLUMNS: Final = ("topic", "partition", "offset", "op", "epoch", "lsn", "key")
_LAID_OUT: Final = ("topic", "partition", "offset")
_KEYED: Final = ("c", "u", "r", "d")
_NULL_KEY: Final = "null"
_LSN_END: Final = 1 << VERSION_LSN_BITS

FoldKey = tuple[str, int]
"""A topic, and the version before which records of it do not count."""


class Piece(NamedTuple):
    """Records of one partition of a topic in one block.

    Attributes:
        block: Number of the block.
        partition: The partition.
        first: Least offset.
        last: Greatest one.
        rising: Whether they are in order.
        rows: How many there are.
    """

    block: int
    partition: int
    first: int
    last: int
    rising: bool
    rows: int


@dataclass(slots=True)
class TopicSurvey:
    """What an archive has of a topic.

    Attributes:
        pieces: Where its records are.
        samples: Some of its offsets, by partition.
        firsts: The first offset of each partition that has records, accepted by the filter or not.
    """

    pieces: list[Piece] = field(default_factory=list)
    samples: dict[int, list[Integers]] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many records there are."""
        return sum(piece.rows for piece in self.pieces)

    def begin(self, batch: pa.RecordBatch) -> None:
        """Records where partitions begin."""
        partitions, offsets = integers(batch.column("partition")), integers(batch.column("offset"))
        for partition in np.unique(partitions).tolist():
            first = int(offsets[partitions == partition].min())
            self.firsts[partition] = min(first, self.firsts.get(partition, first))

    @property
    def ends(self) -> dict[int, int]:
        """The offset after the last accepted record of each partition that has any."""
        ends: dict[int, int] = {}
        for piece in self.pieces:
            ends[piece.partition] = max(piece.last + 1, ends.get(piece.partition, 0))
        return ends


class RecordFilter:
    """Decides which records are read.

    Args:
        through: Offset below which records are read, by topic and partition; no limit without one.
        since: Offset from which records are read, by topic and partition; no limit without one.
    """

    def __init__(
        self,
        through: Offsets | None = None,
        *,
        since: Offsets | None = None,
    ) -> None:
        self._through = through or {}
        self._since = since or {}

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it reads beside offset and key."""
        return ()

    def there(self, topic: str, batch: pa.RecordBatch) -> Flags:
        """Whether the records of a topic are inspected at all."""
        offsets = integers(batch.column("offset"))
        inspected = np.ones(batch.num_rows, np.bool_)
        if not self._through and not self._since:
            return inspected
        partitions = integers(batch.column("partition"))
        for partition in np.unique(partitions).tolist():
            end = self._through.get((topic, partition))
            if end is not None:
                inspected &= (partitions != partition) | (offsets < end)
            begin = self._since.get((topic, partition))
            if begin is not None:
                inspected &= (partitions != partition) | (offsets >= begin)
        return inspected


class ArchiveSurvey:
    """Inspects an archive.

    Args:
        scan: The archive.
        folds: Topics to fold, each with the version before which records do not count.
        taken: The filter of records.
        keeping: Topics whose records may omit unchanged values.
        elsewhere: Which of `folds` an engine folds; see `adopt`.
    """

    def __init__(
        self,
        scan: ArchiveScan,
        folds: Collection[FoldKey],
        taken: RecordFilter,
        keeping: Collection[str] = (),
        elsewhere: Collection[FoldKey] = (),
    ) -> None:
        self._scan = scan
        self._taken = taken
        self._keeping = frozenset(keeping)
        self.own = {key: Fold() for key in folds if key not in elsewhere}
        self._only_lays_out = bool(folds) and not self.own and not taken.columns
        self.folds: dict[FoldKey, Fold | FoldedRows] = {**self.own}
        self.topics = {topic: TopicSurvey() for topic in scan.topics}

    def run(self, on_inspected: Callable[[int], None] = lambda _: None) -> None:
        """Runs the survey.

        Args:
            on_inspected: Receives the number of inspected rows.
        """
        self.look(enumerate(self._scan.blocks), on_inspected)
        for topic in {topic for topic, _ in self.own}:
            self._follow_moves(topic)

    def adopt(self, folded: Mapping[FoldKey, FoldedRows]) -> None:
        """Adopts the results of an engine's folds."""
        self.folds |= folded
        for topic in {topic for topic, _ in folded}:
            self._follow_moves(topic)

    def look(
        self,
        blocks: Iterable[tuple[int, Block]],
        on_inspected: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Inspects some blocks.

        Args:
            blocks: The blocks, by number.
            on_inspected: Receives the number of inspected rows.
        """
        names = [*_COLUMNS, *self._taken.columns, *(["after"] if self._keeping else [])]
        for number, block in blocks:
            extra = [] if self._scan.only_tombstones(block) else ["source", "raw_value"]
            columns = list(_LAID_OUT) if self._only_lays_out else [*names, *extra]
            for first, batch in self._scan.read(columns, [block]):
                for topic, chosen in by_topic(batch, self._scan.topics):
                    self._take(topic, number, first, batch, chosen)
                on_inspected(batch.num_rows)

    def ends(self) -> Offsets:
        """Returns the offset after the last record of each partition that has any."""
        return {
            (topic, partition): end
            for topic, survey in self.topics.items()
            for partition, end in survey.ends.items()
        }

    def _take(
        self, topic: str, number: int, first: int, batch: pa.RecordBatch, chosen: Flags | None
    ) -> None:
        rows = np.arange(first, first + batch.num_rows)
        if chosen is not None:
            batch, rows = batch.filter(pa.array(chosen)), rows[chosen]
        self.topics[topic].begin(batch)
        there = self._taken.there(topic, batch)
        if not there.all():
            batch, rows = batch.filter(pa.array(there)), rows[there]
        if not batch.num_rows:
            return
        self._lay_out(self.topics[topic], number, batch)
        folds = {ahead: fold for (name, ahead), fold in self.own.items() if name == topic}
        if not folds:
            return
        for ahead, fold in folds.items():
            self._fold(fold, ahead, batch, rows, keeping=topic in self._keeping)

    @staticmethod
    def _lay_out(survey: TopicSurvey, number: int, batch: pa.RecordBatch) -> None:
        partitions, offsets = integers(batch.column("partition")), integers(batch.column("offset"))
        for partition in np.unique(partitions).tolist():
            own = offsets[partitions == partition]
            rising = bool((np.diff(own) > 0).all())
            survey.samples.setdefault(partition, []).append(own[::SAMPLED_EVERY].copy())
            piece = Piece(number, partition, int(own.min()), int(own.max()), rising, len(own))
            last = next((p for p in reversed(survey.pieces) if p.partition == partition), None)
            if last is not None and last.block == number:
                rising = last.rising and rising and last.last < piece.first
                survey.pieces.remove(last)
                piece = Piece(
                    number,
                    partition,
                    min(last.first, piece.first),
                    max(last.last, piece.last),
                    rising,
                    last.rows + piece.rows,
                )
            survey.pieces.append(piece)

    @staticmethod
    def _fold(
        fold: Fold, left_to_read: int, batch: pa.RecordBatch, rows: Integers, *, keeping: bool
    ) -> None:
        key, versions = batch.column("key"), versions_of(batch)
        keyed, truncates, tombstones, named = classified(batch)
        fold.add_truncates(versions[truncates], rows[truncates])
        unread = ~keyed & ~truncates & ~tombstones
        fold.unread_keys.update(key.filter(pa.array(unread & named)).to_pylist())
        fold.loose_rows += rows[(unread | keyed) & ~named].tolist()
        taken = keyed & named & (versions >= left_to_read)
        if not taken.any():
            return
        keeps = np.zeros(len(rows), np.bool_)
        if keeping:
            for mark in UNCHANGED_MARKS:
                keeps |= flags(pc.match_substring(batch.column("after"), mark.decode()))
        fold.add(
            KeyedRecords(
                key.filter(pa.array(taken)).cast(pa.large_string()),
                versions[taken],
                integers(batch.column("offset"))[taken],
                rows[taken],
                keeps[taken],
            )
        )

    def _follow_moves(self, topic: str) -> None:
        """Collects the former keys of rows, whose records may have the rows' unchanged values."""
        folds = [fold for (name, _), fold in self.folds.items() if name == topic]
        if not any(fold.chained() for fold in folds):
            return
        blocks = [
            self._scan.blocks[n] for n in {piece.block for piece in self.topics[topic].pieces}
        ]
        for _, batch in self._scan.read(["topic", "key", "headers"], blocks):
            for name, chosen in by_topic(batch, [topic]):
                own = batch if chosen is None else batch.filter(pa.array(chosen))
                if name == topic:
                    old_by_new = old_keys(own.column("headers"), own.column("key"))
                    for fold in folds:
                        for new, olds in old_by_new.items():
                            fold.moved.setdefault(new, set()).update(olds)


def by_topic(batch: pa.RecordBatch, topics: Collection[str]) -> list[tuple[str, Flags | None]]:
    """Returns the topics of a batch, with the rows of each; None for all of them."""
    column = batch.column("topic")
    names = column.dictionary.to_pylist()
    codes = column.indices.to_numpy(zero_copy_only=False)
    chosen: list[tuple[str, Flags | None]] = []
    for code in np.unique(codes).tolist():
        if names[code] in topics:
            own = codes == code
            chosen.append((names[code], None if own.all() else own))
    return chosen


def classified(batch: pa.RecordBatch) -> tuple[Flags, Flags, Flags, Flags]:
    """Returns which records are changes of rows, truncates and tombstones, and which have a key.

    Args:
        batch: Records with `op`, `lsn` and `key`; with `source` and `raw_value` unless all that
            have no operation are tombstones.
    """
    op, key = batch.column("op"), batch.column("key")
    keyed = flags(pc.is_in(op, value_set=pa.array(_KEYED)))
    keyed &= integers(batch.column("lsn")) < _LSN_END
    named = flags(pc.and_(key.is_valid(), pc.not_equal(key, _NULL_KEY)))
    return keyed, flags(pc.equal(op, "t")), _tombstones(batch), named


def versions_of(batch: pa.RecordBatch) -> Integers:
    """Returns the versions of records; 0 for records without one."""
    return integers(batch.column("epoch")) << VERSION_LSN_BITS | integers(batch.column("lsn"))


def integers(column: pa.Array) -> Integers:
    """Returns a column of whole numbers, with 0 for NULL."""
    if column.null_count:
        column = column.fill_null(0)
    numbers: Integers = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def flags(column: pa.Array) -> Flags:
    """Returns a column of booleans, with False for NULL."""
    if column.null_count:
        column = column.fill_null(False)
    result: Flags = column.to_numpy(zero_copy_only=False)
    return result


def _tombstones(batch: pa.RecordBatch) -> Flags:
    none = flags(batch.column("op").is_null())
    if "source" in batch.schema.names:
        none &= flags(batch.column("source").is_null()) & flags(batch.column("raw_value").is_null())
    return none
