"""BacklogReader: reads its share of a large batch, as one of several tasks.

It reads by columns what `BacklogWriter` would read so, and leaves everything else as it came, in
its place. It needs no store: its file is in a folder of the batch, and a task whose batch is no
longer needed finds no such folder.
"""

from __future__ import annotations

import socket
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from projections.common.fault import FaultError
from projections.common.shared_folder import not_shared
from projections.common.task_files import disk_full
from projections.errors import BacklogSpaceError
from projections.job.backlog_writer import DELIVERED_RECORDS
from projections.job.plain_topic import topic_readers
from projections.job.record_runs import by_piece, records_of
from projections.job.stored_runs import STORED, GatheredRun, RunFile
from projections.job.task_edge import collecting_rarely, crossing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from projections.changes.task_outcome import BlockedKeys
    from projections.common.task_files import TaskFiles
    from projections.job.plain_topic import PlainRun
    from projections.job.record_runs import BacklogPiece
    from projections.job.stored_runs import StoredRun
    from projections.planning.view_plan import ViewPlan

GATHERED_BYTES_MAX: Final = 32 << 20
"""Rows that a task holds at once; the newest of each key takes about as much again."""


@dataclass(frozen=True, slots=True)
class BacklogReader:
    """Reads records of a large batch.

    Attributes:
        plans: The views.
        held: Quarantined keys, by view.
        files: The files of the batch.
    """

    plans: Sequence[ViewPlan]
    held: Mapping[str, BlockedKeys]
    files: TaskFiles

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stores the records of a task, and yields a row for each stored run.

        Raises:
            FaultError: The files cannot be written.
        """
        try:
            with collecting_rarely(), self.files.joined() as (name, file):
                share = _Share(self.plans, self.held, RunFile(name, file))
                for batch in batches:
                    for piece, records in by_piece(batch):
                        share.take(piece, records)
                share.store()
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise self._crossing(error) from None
        yield pa.RecordBatch.from_pylist([run._asdict() for run in share.stored], STORED)

    def _crossing(self, error: Exception) -> FaultError:
        folder = self.files.folder
        if disk_full(error):
            return FaultError(space_error(folder.parent))
        if not folder.is_dir():
            return FaultError(not_shared(folder, f"it is not there, on {socket.gethostname()}"))
        return crossing(error)


def space_error(folder: Path) -> BacklogSpaceError:
    """Returns the error of a full disk with files of large batches, on this machine."""
    return BacklogSpaceError(
        "the disk with the tables is full: a large batch cannot be read",
        detail=f"{folder}, on {socket.gethostname()}",
        hint="free space there, or raise the quota; the job then continues",
    )


class _Share:
    """What one task reads.

    Args:
        plans: The views.
        held: Quarantined keys, by view.
        file: The file of the task.
    """

    def __init__(
        self, plans: Sequence[ViewPlan], held: Mapping[str, BlockedKeys], file: RunFile
    ) -> None:
        self._readers = topic_readers(plans, held)
        self._file = file
        self._left: Counter[str] = Counter()  # records of a topic that stay as they came
        self._gathered: GatheredRun | None = None
        self.stored: list[StoredRun] = []

    def take(self, piece: BacklogPiece, records: pa.RecordBatch) -> None:
        """Reads the next records of a piece."""
        run = self._read(piece.topic, records)
        if run is None:
            self.store()
            self.stored.append(self._file.add_records(piece, records))
            return
        gathered = self._gathered
        if gathered is None or (gathered.piece, gathered.epoch) != (piece, run.epoch):
            self.store()
            gathered = self._begun(piece, run, records)
        gathered.add(run)
        if gathered.size_bytes >= GATHERED_BYTES_MAX:
            self.store()

    def store(self) -> None:
        """Stores what was gathered."""
        if self._gathered is not None:
            self.stored.append(self._file.add(self._gathered))
            self._gathered = None

    def _read(self, topic: str, records: pa.RecordBatch) -> PlainRun | None:
        reader = self._readers.get(topic)
        if reader is None:
            return None
        if self._left[topic] > 0:
            self._left[topic] -= records.num_rows
            return None
        run = reader.read(records_of(records))
        if run is None:
            self._left[topic] = DELIVERED_RECORDS - records.num_rows
        return run

    def _begun(self, piece: BacklogPiece, run: PlainRun, records: pa.RecordBatch) -> GatheredRun:
        reader = self._readers[piece.topic]
        assert reader is not None  # noqa: S101  # it has read them
        offset = records.column("offset")[0].as_py()
        self._gathered = GatheredRun(piece, offset, run.epoch, reader.plans)
        return self._gathered
