"""Tasks of an initial load: each copies ranges of a source table, and writes them as Parquet files.

A piece of ranges becomes a small Delta table of its own, in the folder of the run: `deltalake`
writes its files, with the statistics that engines prune by, and the driver adds them to the view's
table. If a piece is written twice, the driver takes one of its two tables.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import psycopg
import pyarrow as pa
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError

from foundation.atomic_file import sync_files
from projections.common.fault import kind_and_place
from projections.common.pooled_memory import pooled_memory
from projections.common.task_fence import TaskFence
from projections.common.task_files import disk_full
from projections.errors import LoadFailedError
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.table_format import COMPACTED_BYTES, limits, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from projections.common.task_files import TaskFiles
    from projections.stores.delta.source_copy import Piece, SourceCopy

LOADED: Final = pa.schema([("folder", pa.string()), ("rows", pa.int64())])
LOADED_DDL: Final = "folder string, rows bigint"
"""What a task returns of a piece: the folder of its table, and how many rows it has."""

_RENEWED: Final = "renewed"
"""File that ends tasks; see `LoadRows.renew`."""


@dataclass(frozen=True, slots=True)
class LoadRows:
    """Copies pieces of a source table.

    Attributes:
        source: The table.
        snapshot: The exported snapshot, whose session is open until the tasks have ended.
        pieces: The ranges of each piece.
        files: Where the tables of pieces are; see `TaskFence`.
        since: If given, only rows that this transaction or a later one has written.
    """

    source: SourceCopy
    snapshot: str
    pieces: tuple[Piece, ...]
    files: TaskFiles
    since: int | None = None

    def renew(self) -> None:
        """Has tasks end after their present pieces: the other pieces get another snapshot."""
        (self.files.folder / _RENEWED).touch()

    def begin(self) -> None:
        """Lets tasks copy pieces."""
        (self.files.folder / _RENEWED).unlink(missing_ok=True)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copies the pieces that it is given by number, over one connection; see `renew`."""
        fence = TaskFence(self.files.folder)
        with (
            self.files.at_work(),
            fence.task(),
            _named_errors(),
            self.source.session(self.snapshot) as connection,
            pooled_memory(),
        ):
            numbers = self._numbers(batches)
            yield from self.files.pieces(numbers, LOADED, partial(self._piece, connection, fence))

    def _numbers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields numbers, each as a batch; once the snapshot is renewed, one of a new piece."""
        copies = False
        for batch in batches:
            for row, number in enumerate(batch.column(0).to_pylist()):
                if copies and (self.files.folder / _RENEWED).exists():
                    return
                copies = copies or not self.files.finished(number)
                yield batch.slice(row, 1)

    def _piece(
        self, connection: psycopg.Connection[Any], fence: TaskFence, number: int
    ) -> Mapping[str, Any]:
        folder = self.files.folder / f"{number}-{uuid4()}"
        rows = 0
        failure: list[Exception] = []

        def copied() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            try:
                for batch in self.source.batches(connection, self.pieces[number], self.since):
                    fence.check()
                    rows += batch.num_rows
                    yield batch
            except Exception as error:  # an error that passes through the library loses its class
                failure.append(error)
                raise

        schema = table_schema(self.source.plan)
        reader = pa.RecordBatchReader.from_batches(schema, copied())
        try:
            write_deltalake(
                str(folder),
                reader,
                target_file_size=COMPACTED_BYTES,
                configuration=limits(schema),
                writer_properties=writing(schema),
            )
        except Exception:
            if failure:
                raise failure[0] from None
            raise
        sync_files(folder)
        return {"folder": folder.name, "rows": rows}


@contextmanager
def _named_errors() -> Iterator[None]:
    """Names what may be otherwise when the piece is copied again."""
    try:
        yield
    except (psycopg.Error, DeltaError, pa.ArrowException, OSError) as error:
        if disk_full(error):
            raise
        state = getattr(error, "sqlstate", None)
        raise LoadFailedError(
            "ranges of a source table cannot be copied", detail=state or kind_and_place(error)
        ) from None
