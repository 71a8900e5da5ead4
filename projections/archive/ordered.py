"""Reads the records of a topic in offset order, whatever their order in the archive.

Compaction merges files in its own order. Records that are in order are read directly; otherwise
they are first sorted into parts on disk, each with a range of offsets of a partition, so that at
most one part is in memory.
"""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.records import COLUMNS
from projections.archive.survey import SAMPLED_EVERY, by_topic, versions_of
from projections.archive.table import SCHEMA
from projections.common.spill_file import SpillFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from projections.archive.fold import Flags, Integers
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import TopicSurvey

    Choose = Callable[[pa.RecordBatch, Integers], Flags]

_SCHEMA: Final = pa.schema([SCHEMA.field(name) for name in COLUMNS])

BUCKETS_MAX: Final = 200
"""Approximate number of parts into which records are sorted."""


class OrderedRecords:
    """Reads the records of a topic in the order of their offsets.

    Args:
        scan: The archive.
        topic: The topic.
        survey: Where its records are.
        choose: Selects the wanted records, by rows and row numbers.
        scratch: Folder for sorting.
        rows: Approximate number of records in a part.
    """

    def __init__(  # noqa: PLR0913, PLR0917  # what a pass needs
        self,
        scan: ArchiveScan,
        topic: str,
        survey: TopicSurvey,
        choose: Choose,
        scratch: Path | None,
        rows: int,
    ) -> None:
        self._scan = scan
        self._topic = topic
        self._survey = survey
        self._choose = choose
        self._scratch = scratch
        self._rows = rows

    @property
    def in_order(self) -> bool:
        """Returns whether they are already in order."""
        last: dict[int, int] = {}
        for piece in self._survey.pieces:
            if not piece.rising or piece.first <= last.get(piece.partition, -1):
                return False
            last[piece.partition] = piece.last
        return True

    def parts(self) -> Iterator[pa.Table]:
        """Yields the records; changes of one log position are never separated.

        The delete of a row's former key therefore stays with the row.
        """
        if self.in_order:
            yield from _parted(self._rows, self._read())
            return
        with closing(SpillFile(_SCHEMA, self._scratch)) as spool:
            for run in self._sorted_out(spool):
                yield from _parted(self._rows, run)

    def _read(self) -> Iterator[pa.RecordBatch]:
        blocks = self._scan.blocks
        for number in sorted({piece.block for piece in self._survey.pieces}):
            for first, batch in self._scan.read(COLUMNS, [blocks[number]]):
                for _, chosen in by_topic(batch, [self._topic]):
                    rows = np.arange(first, first + batch.num_rows)
                    own = batch if chosen is None else batch.filter(pa.array(chosen))
                    wanted = self._choose(own, rows if chosen is None else rows[chosen])
                    if wanted.any():
                        yield own if wanted.all() else own.filter(pa.array(wanted))

    def _sorted_out(self, spool: SpillFile) -> Iterator[Iterator[pa.RecordBatch]]:
        bounds = self._bounds()
        for batch in self._read():
            _sort_out(batch, bounds, spool)
        for partition, cuts in sorted(bounds.items()):
            yield chain.from_iterable(
                _sorted(spool.read((partition, number))) for number in range(len(cuts) + 1)
            )

    def _bounds(self) -> dict[int, Integers]:
        """Offsets at which each partition is cut."""
        rows = max(self._rows, -(-self._survey.rows // BUCKETS_MAX))
        step = max(1, rows // SAMPLED_EVERY)
        return {
            partition: np.sort(np.concatenate(samples))[step::step]
            for partition, samples in self._survey.samples.items()
        }


def _sort_out(batch: pa.RecordBatch, bounds: dict[int, Integers], spool: SpillFile) -> None:
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    offsets = batch.column("offset").to_numpy(zero_copy_only=False)
    plain = batch.cast(_SCHEMA)  # a spool has no dictionary encoding
    for partition in np.unique(partitions).tolist():
        own = partitions == partition
        numbers = np.searchsorted(bounds[partition], offsets, side="right")
        for number in np.unique(numbers[own]).tolist():
            spool.add((partition, number), plain.filter(pa.array(own & (numbers == number))))


def _sorted(table: pa.Table) -> Iterator[pa.RecordBatch]:
    order = pc.sort_indices(table, [("offset", "ascending")])
    yield from table.take(order).to_batches()


def _parted(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count < rows:
            continue
        table = pa.Table.from_batches(waiting)
        end = _cut(table)
        if end:
            yield table.slice(0, end)
        waiting = table.slice(end).to_batches()
        count = sum(batch.num_rows for batch in waiting)
    if count:
        yield pa.Table.from_batches(waiting)


def _cut(table: pa.Table) -> int:
    """Returns where to cut records so that those of the last log position stay together."""
    versions = versions_of(table.select(["epoch", "lsn"]).combine_chunks().to_batches()[0])
    placed = np.flatnonzero(versions)
    if not len(placed):
        return 0
    partitions = table.column("partition").to_numpy()
    last = placed[-1]
    same = (versions == 0) | ((versions == versions[last]) & (partitions == partitions[last]))
    others = np.flatnonzero(~same)
    return int(others[-1]) + 1 if len(others) else 0
