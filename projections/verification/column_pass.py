"""ColumnPass: finds the keys of a mirror that differ in its table, column by column.

It reads what `key_filter` reads, and hashes rows in Arrow form instead of documents, which takes a
fraction of the time. Equal values of equal types have equal documents, and the other way round, so
both find the same keys. Where a side has no such form, for example because of a value that no table
can represent, the pass ends as `unsuited`, and the rows are compared as documents.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from projections.errors import UnholdableValueError
from projections.stores.delta.row_hashes import RowHashes
from projections.verification.hashed_batches import HashedBatches, key_schema, key_texts
from projections.verification.key_filter import HashFile, differing

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.sink import WarehouseSink
    from projections.verification.source_batches import SourceBatches


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
    """

    def __init__(self, plan: ViewPlan, hashes: RowHashes) -> None:
        self._plan = plan
        self._file = HashFile(key_schema(plan))
        self._hashed = HashedBatches(plan, hashes, self._file.add)

    @property
    def rows(self) -> int:
        """Returns the number of rows added."""
        return self._hashed.rows

    def suits(self, batch: pa.RecordBatch) -> bool:
        """See `HashedBatches.suits`."""
        return self._hashed.suits(batch)

    def add(self, batch: pa.RecordBatch) -> None:
        """See `HashedBatches.add`."""
        self._hashed.add(batch)

    def part(self, number: int) -> pa.Table:
        """See `KeyedHashes.part`."""
        self._hashed.write()
        return self._file.part(number)

    def texts(self, keys: pa.Table) -> list[str]:
        """See `KeyedHashes.texts`."""
        return key_texts(self._plan, keys)

    def close(self) -> None:
        """Deletes the stored keys and hashes."""
        self._file.close()
