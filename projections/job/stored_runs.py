"""Stored runs: records of a large batch that several tasks have read, for the one that writes them.

Each task writes a single file with all its runs, one after the other, and tells where each of them
begins. A run is either what a `PlainRun` has, with the newest row of each key alone, or the records
as they came.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from projections.job.plain_topic import PendingRows, PlainRun
from projections.job.record_runs import RECORD_COLUMNS, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from projections.job.backlog_writer import BacklogRun
    from projections.job.record_runs import BacklogPiece
    from projections.planning.view_plan import ViewPlan

_CODEC: Final = pa.ipc.IpcWriteOptions(compression="lz4")
_OFFSET: Final = "offset"


class StoredRun(NamedTuple):
    """Where a run of records is, and what it has.

    Attributes:
        topic: Its topic.
        partition: Its Kafka partition.
        offset: Offset of its first record.
        file: Name of the file.
        at: Where it begins in the file, in bytes.
        tables: How many tables it has, two for each view of the topic; 0 for records as they came.
        records: How many records there were.
        tombstones: The other fields are those of `PlainRun`; 0 for records as they came.
    """

    topic: str
    partition: int
    offset: int
    file: str
    at: int
    tables: int
    records: int
    tombstones: int = 0
    epoch: int = 0
    after_commit: int = 0
    read_lsn: int = 0

    def of(self, parts: list[tuple[pa.Table, pa.Table]]) -> PlainRun:
        """Returns the run with its rows and deletes."""
        return PlainRun(
            parts, self.records, self.tombstones, self.epoch, self.after_commit, self.read_lsn
        )


STORED: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        (_OFFSET, pa.int64()),
        ("file", pa.string()),
        *((name, pa.int64()) for name in StoredRun._fields[4:]),
    ]
)
STORED_DDL: Final = "topic string, partition int, offset long, file string, " + ", ".join(
    f"{name} long" for name in StoredRun._fields[4:]
)


@dataclass(slots=True)
class GatheredRun:
    """Runs of one piece that were read, and are to be stored as one.

    Attributes:
        piece: The piece.
        offset: Offset of the first record.
        epoch: Incarnation of the source; that of all records.
        plans: The views of the topic.
    """

    piece: BacklogPiece
    offset: int
    epoch: int
    plans: Sequence[ViewPlan]
    records: int = 0
    tombstones: int = 0
    after_commit: int = -1
    read_lsn: int = 0
    _pending: list[PendingRows] = field(init=False)

    def __post_init__(self) -> None:
        """Begins without rows."""
        self._pending = [PendingRows(plan) for plan in self.plans]

    @property
    def size_bytes(self) -> int:
        """Returns how much memory the rows take."""
        return sum(pending.size_bytes for pending in self._pending)

    def add(self, run: PlainRun) -> None:
        """Adds the next run of the piece."""
        for pending, part in zip(self._pending, run.parts, strict=True):
            pending.add(*part)
        self.records += run.records
        self.tombstones += run.tombstones
        self.after_commit = max(self.after_commit, run.after_commit)
        self.read_lsn = max(self.read_lsn, run.read_lsn)

    def newest(self) -> list[pa.Table]:
        """Returns rows and deletes of each view, the newest of each key, and forgets all."""
        return [table for pending in self._pending for table in pending.newest()]


class RunFile:
    """The file of one task.

    Args:
        name: Its name.
        file: The file, open for writing.
    """

    def __init__(self, name: str, file: pa.NativeFile) -> None:
        self._name = name
        self._file = file

    def add(self, run: GatheredRun) -> StoredRun:
        """Stores records that were read."""
        tables, at = run.newest(), self._file.tell()
        for table in tables:
            with pa.ipc.new_stream(self._file, table.schema, options=_CODEC) as stream:
                stream.write_table(table)
        return StoredRun(
            run.piece.topic,
            run.piece.partition,
            run.offset,
            self._name,
            at,
            len(tables),
            run.records,
            run.tombstones,
            run.epoch,
            run.after_commit,
            run.read_lsn,
        )

    def add_records(self, piece: BacklogPiece, records: pa.RecordBatch) -> StoredRun:
        """Stores records as they came."""
        at, kept = self._file.tell(), records.select(["topic", *RECORD_COLUMNS])
        with pa.ipc.new_stream(self._file, kept.schema, options=_CODEC) as stream:
            stream.write_batch(kept)
        offset = records.column(_OFFSET)[0].as_py()
        return StoredRun(piece.topic, piece.partition, offset, self._name, at, 0, records.num_rows)


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """The runs of a batch.

    Attributes:
        folder: Folder of their files.
        runs: The runs, in any order.
    """

    folder: Path
    runs: tuple[StoredRun, ...]

    def read(self) -> Iterator[BacklogRun]:
        """Yields the runs, those of each Kafka partition in the order of their offsets."""
        for run in sorted(self.runs):
            with pa.OSFile(str(self.folder / run.file)) as file:
                file.seek(run.at)
                if run.tables:
                    tables = [_table(file) for _ in range(run.tables)]
                    parts = list(zip(tables[::2], tables[1::2], strict=True))
                    yield run.topic, run.of(parts)
                    continue
                with pa.ipc.open_stream(file) as stream:
                    for batch in stream:
                        yield from by_topic(batch)


def _table(file: pa.NativeFile) -> pa.Table:
    with pa.ipc.open_stream(file) as stream:
        return stream.read_all()
