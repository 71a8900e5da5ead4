"""Reads the rows that a mirror should have in its table, as Arrow batches.

The statements read along the table's key, like those of `source_rows`. They become longer while
each stays short in time and in size, so that none holds back the vacuum of the source.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from cdc.postgres import table_size
from cdc.snapshot.progress import KeyRange
from projections.changes.documents import source_key
from projections.changes.row_batch import ROWS_AT_ONCE, source_columns
from projections.errors import UnholdableValueError
from projections.stores.delta import copy_format
from projections.stores.delta.arrow import decoded_columns, row_part
from projections.verification.source_rows import SourceRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from projections.planning.view_plan import ViewPlan
    from projections.verification.source_rows import Key

RANGE_ROWS_MAX: Final = 50_000
RANGE_BYTES: Final = 8 << 20
"""Size that the text of a range should have, at most."""

RANGE_S: Final = 0.5
"""Time that a range should take, at most; a table that is not in memory takes longer for a row."""

RANGE_ROWS_MIN: Final = 500


def supported(connection: psycopg.Connection[Any], plan: ViewPlan) -> bool:
    """Returns whether the rows of a view can be read as batches."""
    mirror = plan.events is None and plan.history is None and not plan.append_only
    return mirror and not plan.nested and connection.info.encoding == "utf-8"


class SourceBatches:
    """Reads the rows that a view should have; its plan is `supported`.

    Args:
        connection: From `source_rows.session_of`.
        plan: The view.
        keys: The range of rows; all by default.

    Attributes:
        withheld: Number of rows read that the view excludes because they do not meet an
            expectation.
        complete: Whether all rows were read.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], plan: ViewPlan, keys: KeyRange | None = None
    ) -> None:
        self.withheld = 0
        self.complete = False
        self._connection = connection
        self._plan = plan
        self._rows = SourceRows(connection, plan)
        self._names = source_columns(plan)
        self._inspection = plan.inspection() if plan.expectations else None
        self._left = KeyRange() if keys is None else keys
        self._limit = ROWS_AT_ONCE

    def rows_expected(self) -> int:
        """Returns the server's estimate of the table's rows.

        Raises:
            psycopg.Error: The table cannot be read.
        """
        return table_size.of_tables(self._connection, [self._plan.schema.table]).rows

    def all(self) -> Iterator[pa.RecordBatch]:
        """Reads all rows; see `next_range`."""
        while not self.complete:
            yield from self.next_range()

    def next_range(self) -> Iterator[pa.RecordBatch]:
        """Reads the next rows, in one statement that is open until the last batch.

        Raises:
            UnholdableValueError: A value has no exact form in a table.
            psycopg.Error: The table cannot be read.
        """
        columns, began = self._rows.columns, time.monotonic()
        selected = copy_format.selected(columns)
        query = self._rows.query_within(self._left, self._limit, selected)
        rows = size_bytes = 0
        last = None
        with closing(copy_format.blocks(self._connection, query)) as blocks:
            for text in blocks:
                try:
                    arrays = copy_format.decoded(self._plan, columns, text)
                except UnholdableValueError:
                    # to the end: through a pooler, a late cancel could reach another client
                    deque(blocks, maxlen=0)
                    raise
                last = pa.Table.from_arrays(arrays, self._names).combine_chunks().to_batches()[0]
                rows += last.num_rows
                size_bytes += len(text)
                yield self._passed(last)
        if last is None or rows < self._limit:
            self.complete = True
            return
        self._left = replace(self._left, above=self._last_key(last))
        self._limit = next_limit(self._limit, size_bytes, time.monotonic() - began)

    def _passed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Excludes the rows that do not meet an expectation."""
        inspection = self._inspection
        if inspection is None:
            return batch
        # with the key, since a condition may read no column
        names = {*inspection.columns.intersection(self._names), *self._plan.keys}
        rows = decoded_columns(self._plan, batch, names)
        stays = [inspection.unmet(row, counts=False) is None for row in rows]
        self.withheld += stays.count(False)
        return batch.filter(pa.array(stays, pa.bool_()))

    def _last_key(self, batch: pa.RecordBatch) -> Key:
        columns = [self._plan.schema.by_name[name] for name in self._plan.keys]
        last = pa.Table.from_batches([batch.slice(batch.num_rows - 1)])
        (values,) = row_part(self._plan, last, self._plan.keys).rows
        return source_key(values, columns)


def next_limit(rows: int, size_bytes: int, seconds: float) -> int:
    """Returns how many rows the next statement should read.

    Args:
        rows: The last statement's rows.
        size_bytes: Size of their text.
        seconds: How long it took.
    """
    factor = min(2.0, RANGE_BYTES / max(1, size_bytes), RANGE_S / max(0.001, seconds))
    return max(RANGE_ROWS_MIN, min(RANGE_ROWS_MAX, int(rows * factor)))
