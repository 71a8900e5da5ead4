"""Fold in tasks: the newest record of each key among some blocks, then among all of its records.

The first task folds the records of its blocks and gives one entry for each key; Spark brings the
entries of a key together; the second task folds these. Both fold with `Fold`, so of equal versions
the first record in the topic wins, as in live delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.fold import Fold, KeyedRecords
from projections.archive.fold_entries import CHANGE, ENTRY, LOOSE, TRUNCATE, UNREAD
from projections.archive.survey import ArchiveSurvey
from projections.common.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter

PACKED: Final = pa.schema([("bucket", pa.int32()), ("entries", pa.binary())])
PACKED_DDL: Final = "bucket int, entries binary"
"""Entries of keys with the same hash, thousands at once: Spark moves them, and looks at none."""

FOLDED: Final = pa.schema([("file", pa.string())])
FOLDED_DDL: Final = "file string"
DONE: Final = ".done"
_PACKED_ROWS: Final = 500_000
_CODEC: Final = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class FoldBlocks:
    """Folds blocks of an archive.

    Attributes:
        scan: The archive.
        topic: The topic.
        left_to_read: Version before which records do not count.
        taken: Which records are taken.
        groups: Numbers of the first block of each task, and of the one after its last.
        buckets: Into how many parts keys are divided by their hash.
        folder: Where it marks what is done.
        share: Of its time, how much the task takes at most.
    """

    scan: ArchiveScan
    topic: str
    left_to_read: int
    taken: RecordFilter
    groups: tuple[tuple[int, int], ...]
    buckets: int
    folder: Path
    share: float = 1.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds the groups that it is given by number."""
        throttle = Throttle(self.share)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                first, end = self.groups[number]
                yield from self._group(first, end, throttle)
                mark_done(self.folder, number)

    def _group(self, first: int, end: int, throttle: Throttle) -> Iterator[pa.RecordBatch]:
        key = self.topic, self.left_to_read
        survey = ArchiveSurvey(self.scan, [key], self.taken, [self.topic])
        blocks = list(enumerate(self.scan.blocks))[first:end]
        survey.look(blocks, lambda _: throttle.step())
        made = entries(survey.own[key])
        hashes = [0 if key is None else crc32(key.encode()) for key in made["key"].to_pylist()]
        of_bucket = np.asarray(hashes, np.int64) % self.buckets
        for bucket in range(self.buckets):
            yield from _packed(bucket, made.filter(pa.array(of_bucket == bucket)))


@dataclass(frozen=True, slots=True)
class FoldKeys:
    """Folds the entries of the same keys to files; gives a key only where it is asked for.

    Attributes:
        folder: Where the files are written.
        named: Keys of which the entries are wanted, and no others; None for all entries, with the
            keys of those that keep values.
    """

    folder: Path
    named: frozenset[str] | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds all that it is given; says how its file is called."""
        made = self._folded(batches)
        if not made.num_rows:
            return
        path = self.folder / f"{uuid4()}.arrow"  # a task that is retried makes another
        with pa.ipc.new_file(str(path), ENTRY, options=_CODEC) as file:
            file.write_table(made)
        yield pa.RecordBatch.from_pydict({"file": [path.name]}, FOLDED)

    def _folded(self, batches: Iterable[pa.RecordBatch]) -> pa.Table:
        fold, others = Fold(), []
        for batch in chain.from_iterable(map(_unpacked, batches)):
            kinds = batch.column("kind").to_numpy(zero_copy_only=False)
            others.append(batch.filter(pa.array(kinds != CHANGE)))
            fold.add(_changes(batch.filter(pa.array(kinds == CHANGE))))
        rest = pa.Table.from_batches(others, ENTRY) if others else ENTRY.empty_table()
        newest = fold.newest()
        made = ENTRY.empty_table() if newest is None else _table(newest)
        if self.named is not None:
            names = pa.array(sorted(self.named), pa.string())
            return made.filter(pc.is_in(made["key"], value_set=names))
        keys = pc.if_else(made["kept"], made["key"], pa.scalar(None, pa.string()))
        made = made.set_column(1, ENTRY.field("key"), keys)
        # a replay has no use for offsets
        offsets = pa.nulls(made.num_rows, pa.int64())
        made = made.set_column(3, ENTRY.field("offset"), offsets)
        return pa.concat_tables([made, rest])


def mark_done(folder: Path, number: int) -> None:
    """Marks a part of the work of a task: Spark itself tells of whole tasks only."""
    (folder / f"{number}{DONE}").touch()


def entries(fold: Fold) -> pa.Table:
    """Returns what records come to as entries."""
    newest = fold.newest()
    parts = [] if newest is None else [_table(newest)]
    unread = sorted(fold.unread_keys)
    parts += [
        _made(UNREAD, key=pa.array(unread, pa.string()), rows=len(unread)),
        _made(LOOSE, row=pa.array(fold.loose_rows, pa.int64()), rows=len(fold.loose_rows)),
    ]
    if fold.truncate_row >= 0:
        version, row = ([number] for number in (fold.truncated, fold.truncate_row))
        parts.append(_made(TRUNCATE, version=pa.array(version), row=pa.array(row), rows=1))
    return pa.concat_tables(parts)


def _table(newest: KeyedRecords) -> pa.Table:
    return _made(
        CHANGE,
        key=pa.array(newest.keys).cast(pa.string()),
        version=pa.array(newest.versions),
        offset=pa.array(newest.offsets),
        row=pa.array(newest.rows),
        kept=pa.array(newest.kept),
        rows=len(newest.rows),
    )


def _changes(batch: pa.RecordBatch) -> KeyedRecords:
    version, offset, row = (
        batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        for name in ("version", "offset", "row")
    )
    kept = batch.column("kept").to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return KeyedRecords(batch.column("key").cast(pa.large_string()), version, offset, row, kept)


def _made(kind: int, *, rows: int, **columns: pa.Array) -> pa.Table:
    blank = {field.name: pa.nulls(rows, field.type) for field in ENTRY}
    blank["kind"] = pa.repeat(pa.scalar(kind, pa.int8()), rows)
    return pa.table({**blank, **columns}, ENTRY)


def _unpacked(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for packed in batch.column("entries"):
        yield pa.ipc.open_stream(packed.as_buffer()).read_next_batch()


def _packed(bucket: int, entries: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in entries.combine_chunks().to_batches(max_chunksize=_PACKED_ROWS):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ENTRY, options=_CODEC) as stream:
            stream.write_batch(batch)
        yield pa.RecordBatch.from_arrays(
            [pa.array([bucket], pa.int32()), pa.array([sink.getvalue().to_pybytes()], pa.binary())],
            schema=PACKED,
        )
