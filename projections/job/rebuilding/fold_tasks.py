"""Fold in tasks: the newest record of each key among some blocks, then among all of its records.

The first task folds the records of its blocks and writes one entry for each key, by the hash of the
key; the second task folds all entries of some hashes. They go from one to the other in files of the
folder that both share: through Spark's shuffle they would go into the JVM and out of it twice. Both
fold with `Fold`, so of equal versions the first record in the topic wins, as in live delivery.
What a task has at a time are the keys of one group of blocks, or those of one part of all hashes,
however often one of them has changed.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
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

    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.job.rebuilding.task_files import TaskFiles

FOLDED: Final = pa.schema([("file", pa.string())])
FOLDED_DDL: Final = "file string"


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
        files: Where it writes entries.
        share: Of its time, how much the task takes at most.
    """

    scan: ArchiveScan
    topic: str
    left_to_read: int
    taken: RecordFilter
    groups: tuple[tuple[int, int], ...]
    buckets: int
    files: TaskFiles
    share: float = 1.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds the groups that it is given by number; says how the file of each is called."""
        throttle = Throttle(self.share)

        def folded(number: int) -> dict[str, str]:
            return {"file": self._group(*self.groups[number], throttle)}

        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, FOLDED, folded)

    def _group(self, first: int, end: int, throttle: Throttle) -> str:
        key = self.topic, self.left_to_read
        survey = ArchiveSurvey(self.scan, [key], self.taken, [self.topic])
        blocks = list(enumerate(self.scan.blocks))[first:end]
        survey.look(blocks, lambda _: throttle.step())
        made = entries(survey.own[key])
        if self.buckets > 1:
            keys = made["key"].cast(pa.binary()).fill_null(b"").to_pylist()
            of_bucket = np.fromiter(map(crc32, keys), np.int64, len(keys)) % self.buckets
            order = np.argsort(of_bucket, kind="stable")
            made = made.take(pa.array(order))
            ends = np.searchsorted(of_bucket[order], np.arange(1, self.buckets + 1))
        else:
            ends = np.array([made.num_rows])
        with self.files.writing(ENTRY) as (name, file):
            begin = 0
            for end_row in ends.tolist():  # one batch for each bucket, whether or not it has keys
                part = made.slice(begin, end_row - begin).combine_chunks()
                file.write_batch(_one_batch(part))
                begin = end_row
        return name


@dataclass(frozen=True, slots=True)
class FoldKeys:
    """Folds the entries of the same keys to files; gives a key only where it is asked for.

    Attributes:
        files: Where the files are written.
        folded: Where `FoldBlocks` has written its own.
        names: How those are called.
        named: Keys of which the entries are wanted, and no others; None for all entries, with the
            keys of those that keep values.
    """

    files: TaskFiles
    folded: TaskFiles
    names: tuple[str, ...]
    named: frozenset[str] | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds the buckets that it is given by number; says how the file of each is called."""
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


@contextmanager
def pooled_memory() -> Iterator[None]:
    """Keeps what Arrow frees for what it needs next, until the end.

    Workers give all that they free back to the system at once, so that live batches keep little;
    over millions of rows, a sixth of the time would go to getting it again.
    """
    if "mimalloc" not in pa.supported_memory_backends():
        yield
        return
    before, pool = pa.default_memory_pool(), pa.mimalloc_memory_pool()
    pa.set_memory_pool(pool)
    try:
        yield
    finally:
        pa.set_memory_pool(before)
        pool.release_unused()


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


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    found = table.to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], ENTRY)
