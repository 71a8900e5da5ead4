"""Fold in tasks: the newest record of each key among some blocks, then among all of its records.

The first task folds the records of its blocks and gives one entry for each key; Spark brings the
entries of a key together; the second task folds these. Both fold with `Fold`, so of equal versions
the first record in the topic wins, as in live delivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.fold import KeyedRecords, Fold
from projections.archive.survey import ArchiveSurvey
from projections.common.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter

CHANGE, UNREAD, LOOSE, TRUNCATE = range(4)
"""What an entry is: of a key's newest record; of a key of which a record cannot be read; of a
record without a key; of the newest truncate."""

ENTRY: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("key", pa.string()),
        ("version", pa.int64()),
        ("offset", pa.int64()),
        ("row", pa.int64()),
        ("kept", pa.bool_()),
        ("deletes", pa.bool_()),
    ]
)
ENTRY_DDL: Final = (
    "kind tinyint, key string, version bigint, offset bigint, row bigint, kept boolean,"
    " deletes boolean"
)
_BATCH_ROWS: Final = 50_000


@dataclass(frozen=True, slots=True)
class FoldBlocks:
    """Folds blocks of an archive.

    Attributes:
        scan: The archive.
        topic: The topic.
        left_to_read: Version before which records do not count.
        taken: Which records are taken.
        groups: Numbers of the first block of each task, and of the one after its last.
        share: Of its time, how much the task takes at most.
    """

    scan: ArchiveScan
    topic: str
    left_to_read: int
    taken: RecordFilter
    groups: tuple[tuple[int, int], ...]
    share: float = 1.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds the groups that it is given by number."""
        throttle = Throttle(self.share)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._group(*self.groups[number], throttle)

    def _group(self, first: int, end: int, throttle: Throttle) -> Iterator[pa.RecordBatch]:
        key = self.topic, self.left_to_read
        survey = ArchiveSurvey(self.scan, [key], self.taken, [self.topic])
        blocks = list(enumerate(self.scan.blocks))[first:end]
        survey.look(blocks, lambda _: throttle.step())
        fold = survey.folds[key]
        assert isinstance(fold, Fold)
        yield from _given(entries(fold))


@dataclass(frozen=True, slots=True)
class FoldKeys:
    """Folds the entries of the same keys; gives a key only where it is asked for.

    Attributes:
        named: Keys of which the entries are wanted, and no others; None for all entries, with the
            keys of those that one record does not make.
    """

    named: frozenset[str] | None = None

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Folds all that it is given."""
        fold, others = Fold(), []
        for batch in batches:
            kinds = batch.column("kind").to_numpy(zero_copy_only=False)
            others.append(batch.filter(pa.array(kinds != CHANGE)))
            fold.add(_changes(batch.filter(pa.array(kinds == CHANGE))))
        rest = pa.Table.from_batches(others, ENTRY) if others else ENTRY.empty_table()
        newest = fold.newest()
        made = ENTRY.empty_table() if newest is None else _table(newest)
        if self.named is not None:
            names = pa.array(sorted(self.named), pa.string())
            yield from _given(made.filter(pc.is_in(made["key"], value_set=names)))
            return
        unread = rest.filter(pc.equal(rest["kind"], UNREAD))["key"]
        wanted = pc.or_(made["kept"], pc.is_in(made["key"], value_set=pc.unique(unread)))
        keys = pc.if_else(wanted, made["key"], pa.scalar(None, pa.string()))
        yield from _given(made.set_column(1, "key", keys))
        yield from _given(rest)


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
        deletes=pa.array(newest.deletes),
        rows=len(newest.rows),
    )


def _changes(batch: pa.RecordBatch) -> KeyedRecords:
    numbers = (
        batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        for name in ("version", "offset", "row")
    )
    flags = (
        batch.column(name).to_numpy(zero_copy_only=False).astype(np.bool_, copy=False)
        for name in ("kept", "deletes")
    )
    return KeyedRecords(batch.column("key").cast(pa.large_string()), *numbers, *flags)


def _made(kind: int, *, rows: int, **columns: pa.Array) -> pa.Table:
    blank = {field.name: pa.nulls(rows, field.type) for field in ENTRY}
    blank["kind"] = pa.repeat(pa.scalar(kind, pa.int8()), rows)
    return pa.table({**blank, **columns}, ENTRY)


def _given(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)
