"""Fold in tasks: the newest record of each key among some blocks, then among all of its records.

The first task folds the records of its blocks and writes one entry for each key, by the hash of the
key; the second task folds all entries of some hashes. The entries are passed in files of a shared
folder, because Spark's shuffle would copy them into the JVM and out of it twice. Both tasks use
`Fold`, so the first record in the topic wins among equal versions, as in live delivery. A task has
in memory one entry for each key of a group of blocks, or of one bucket of hashes, regardless of how
often the keys changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.fold import Fold, KeyedRecords
from projections.archive.fold_entries import CHANGE, ENTRY, LOOSE, TRUNCATE, UNREAD
from projections.archive.progress import rest
from projections.archive.rebuilding.block_tasks import BlockTask, Buckets
from projections.archive.survey import ArchiveSurvey
from projections.common.pooled_memory import pooled_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.common.task_files import TaskFiles
    from projections.common.throttle import Throttle

FOLDED: Final = pa.schema([("file", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldBlocks(BlockTask):
    """Folds blocks of an archive; returns the name of each group's file.

    Attributes:
        topic: The topic.
        left_to_read: Version before which records do not count.
    """

    topic: str
    left_to_read: int
    result_schema: ClassVar = FOLDED

    def group(self, first: int, end: int, throttle: Throttle) -> dict[str, str]:
        """Folds some blocks."""
        key = self.topic, self.left_to_read
        survey = ArchiveSurvey(self.scan, [key], self.taken, [self.topic])
        blocks = list(enumerate(self.scan.blocks))[first:end]
        survey.look(blocks, lambda _: rest(throttle))
        with self.files.writing(ENTRY) as (name, file):
            Buckets(file, self.buckets).write(entries(survey.own[key]))
        return {"file": name}


@dataclass(frozen=True, slots=True)
class FoldKeys:
    """Folds the entries of the same keys to files; an entry has its key only if that is needed.

    Attributes:
        files: Where the files are written.
        folded: Folder of the files of `FoldBlocks`.
        names: Names of these files.
        named: Only the entries of these keys are wanted; None for all entries, with the keys of
            those that omit unchanged values.
    """

    files: TaskFiles
    folded: TaskFiles
    names: tuple[str, ...]
    named: frozenset[str] | None = None
    result_schema: ClassVar = FOLDED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds the buckets with these numbers; yields the name of each one's file."""
        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, FOLDED, self._bucket)

    def _bucket(self, bucket: int) -> dict[str, str | None]:
        made = self._folded(bucket)
        if not made.num_rows:
            return {"file": None}
        with self.files.writing(ENTRY) as (name, file):
            file.write_table(made)
        return {"file": name}

    def _folded(self, bucket: int) -> pa.Table:
        fold, others = Fold(), []
        for name in self.names:
            with pa.ipc.open_file(str(self.folded.folder / name)) as file:
                batch = file.get_batch(bucket)
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


def entries(fold: Fold) -> pa.Table:
    """Returns the entries of records."""
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
        kept=pa.array(newest.partial),
        rows=len(newest.rows),
    )


def _changes(batch: pa.RecordBatch) -> KeyedRecords:
    version, offset, row = (
        batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        for name in ("version", "offset", "row")
    )
    partial = batch.column("kept").to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
    return KeyedRecords(batch.column("key").cast(pa.large_string()), version, offset, row, partial)


def _made(kind: int, *, rows: int, **columns: pa.Array) -> pa.Table:
    blank = {field.name: pa.nulls(rows, field.type) for field in ENTRY}
    blank["kind"] = pa.repeat(pa.scalar(kind, pa.int8()), rows)
    return pa.table({**blank, **columns}, ENTRY)
