"""ColumnPass: finds the keys of a mirror that differ in its table, column by column.

It reads what `key_filter` reads, and hashes rows in Arrow form instead of documents, which takes a
fraction of the time. Equal values of equal types have equal documents, and the other way round, so
both find the same keys. Where a side has no such form, for example because of a value that no table
can represent, the pass ends as `unsuited`, and the rows are compared as documents.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from projections.changes.row_batch import source_columns
from projections.errors import UnholdableValueError
from projections.stores.delta.arrow import arrow_type, row_part
from projections.stores.delta.row_hashes import RowHashes
from projections.verification.key_filter import HashFile, differing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.sink import WarehouseSink
    from projections.verification.key_filter import Numbers
    from projections.verification.source_batches import SourceBatches

_KEPT_ROWS: Final = 128 * 1024
"""Rows of one side that are buffered before they are written: only their keys and hashes."""


class ColumnPass:
    """Compares a view's table with its source once.

    Args:
        plan: The view; see `source_batches.supported`.
        source: The rows that it should have.
        sink: The warehouse.

    Attributes:
        rows: Number of rows read from the source.
        suspects: Texts of the keys that differ.
        unsuited: Whether the rows have to be compared as documents.
    """

    def __init__(self, plan: ViewPlan, source: SourceBatches, sink: WarehouseSink) -> None:
        self.rows = 0
        self.suspects: list[str] = []
        self.unsuited = False
        self._plan = plan
        self._source = source
        self._sink = sink

    @property
    def withheld(self) -> int:
        """Returns the number of rows read that the view excludes."""
        return self._source.withheld

    def steps(self) -> Iterator[None]:
        """Reads and compares both sides.

        Raises:
            psycopg.Error: The source cannot be read.
            SinkUnavailableError: The table cannot be read.
        """
        with ExitStack() as stack:
            hashes = RowHashes(signed_zeros=True)
            source, store = (
                stack.enter_context(closing(ComparedBatches(self._plan, hashes))) for _ in range(2)
            )
            try:
                while not self._source.complete:
                    for batch in self._source.next_range():
                        source.add(batch)
                    yield
            except UnholdableValueError:
                self.unsuited = True
                return
            self.rows = source.rows
            for batch in self._sink.batches(self._plan):
                if not store.suits(batch):
                    self.unsuited = True
                    return
                store.add(batch)
                yield
            for keys in differing(source, store):
                self.suspects += keys
                yield


class ComparedBatches:
    """The rows of one side, with hashes that both sides share. The owner must close it.

    Args:
        plan: The view.
        hashes: Hashes the rows of both sides.

    Attributes:
        rows: Number of rows added.
    """

    def __init__(self, plan: ViewPlan, hashes: RowHashes) -> None:
        self.rows = 0
        self._plan = plan
        self._hashes = hashes
        names, by_name = source_columns(plan), plan.schema.by_name
        self._others = [name for name in names if name not in plan.keys]
        self._schema = pa.schema([(name, arrow_type(by_name[name])) for name in names])
        self._file = HashFile(pa.schema([self._schema.field(name) for name in plan.keys]))
        self._kept: list[tuple[list[pa.Array], Numbers, Numbers]] = []
        self._kept_rows = 0

    def suits(self, batch: pa.RecordBatch) -> bool:
        """Returns whether rows have exactly the types of the view's present columns."""
        return bool(batch.schema.types == self._schema.types)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            OSError: The disk is full.
        """
        if not batch.num_rows:
            return
        places = self._hashes.of(batch, self._plan.keys)
        rows = self._hashes.of(batch, self._others, places)
        keys = [batch.column(name) for name in self._plan.keys]
        self._kept.append((keys, places.view(np.int64), rows.view(np.int64)))
        self.rows += batch.num_rows
        self._kept_rows += batch.num_rows
        if self._kept_rows >= _KEPT_ROWS:
            self._write()

    def part(self, number: int) -> pa.Table:
        """See `KeyedHashes.part`."""
        if self._kept:
            self._write()
        return self._file.part(number)

    def texts(self, keys: pa.Table) -> list[str]:
        """See `KeyedHashes.texts`."""
        return row_part(self._plan, keys, self._plan.keys).keys(self._plan.keys)

    def close(self) -> None:
        """Deletes the stored keys and hashes."""
        self._file.close()

    def _write(self) -> None:
        columns, places, rows = zip(*self._kept, strict=True)
        keys = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
        self._file.add(keys, np.concatenate(places), np.concatenate(rows))
        self._kept, self._kept_rows = [], 0
