"""HashedBatches: the rows of one side of a comparison, hashed column by column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from projections.changes.row_batch import source_columns
from projections.stores.delta.arrow import arrow_type, row_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.row_hashes import RowHashes
    from projections.verification.key_filter import Numbers

    Store = Callable[[Sequence[pa.Array], Numbers, Numbers], None]

_KEPT_ROWS: Final = 128 * 1024
"""Rows that are buffered before they are written: only their keys and hashes."""


class HashedBatches:
    """Hashes rows, and writes their keys and hashes.

    Args:
        plan: The view.
        hashes: Hashes the rows of both sides.
        write: Receives columns of keys, the hash of each key, and that of its row.
        kept_rows: Rows that are buffered before they are written; None for the usual number.

    Attributes:
        rows: Number of rows added.
    """

    def __init__(
        self, plan: ViewPlan, hashes: RowHashes, write: Store, kept_rows: int | None = None
    ) -> None:
        self.rows = 0
        self._keys = plan.keys
        self._hashes = hashes
        self._write = write
        self._kept_rows_max = _KEPT_ROWS if kept_rows is None else kept_rows
        self._types = _schema(plan).types
        self._others = [name for name in source_columns(plan) if name not in plan.keys]
        self._kept: list[tuple[list[pa.Array], Numbers, Numbers]] = []
        self._kept_rows = 0

    def suits(self, batch: pa.RecordBatch) -> bool:
        """Returns whether rows have exactly the types of the view's present columns."""
        return bool(batch.schema.types == self._types)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds rows.

        Raises:
            OSError: The disk is full.
        """
        if not batch.num_rows:
            return
        places = self._hashes.of(batch, self._keys)
        rows = self._hashes.of(batch, self._others, places)
        keys = [batch.column(name) for name in self._keys]
        self._kept.append((keys, places.view(np.int64), rows.view(np.int64)))
        self.rows += batch.num_rows
        self._kept_rows += batch.num_rows
        if self._kept_rows >= self._kept_rows_max:
            self.write()

    def write(self) -> None:
        """Writes what is buffered.

        Raises:
            OSError: The disk is full.
        """
        if not self._kept:
            return
        columns, places, rows = zip(*self._kept, strict=True)
        keys = [pa.concat_arrays(parts) for parts in zip(*columns, strict=True)]
        self._write(keys, np.concatenate(places), np.concatenate(rows))
        self._kept, self._kept_rows = [], 0


def key_schema(plan: ViewPlan) -> pa.Schema:
    """Returns the schema of a view's keys."""
    schema = _schema(plan)
    return pa.schema([schema.field(name) for name in plan.keys])


def key_texts(plan: ViewPlan, keys: pa.Table) -> list[str]:
    """Returns the texts of keys, given as columns."""
    return row_part(plan, keys, plan.keys).keys(plan.keys)


def _schema(plan: ViewPlan) -> pa.Schema:
    by_name = plan.schema.by_name
    return pa.schema([(name, arrow_type(by_name[name])) for name in source_columns(plan)])
