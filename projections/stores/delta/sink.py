"""The warehouse: writes histories and tables of latest rows by the sink of their kind."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from projections.common.delta_log import refuse_torn, torn
from projections.common.file_lock import WriterLock
from projections.errors import SinkUnavailableError
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_sink import TableSink
from projections.stores.delta.view_tables import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import Applied, ReadSpan, RowChange
    from projections.changes.sink import StoredKey
    from projections.planning.view_plan import ViewPlan


class WarehouseSink:
    """Delegates each view to the sink of its kind; see `TableSink` and `HistorySink`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._latest = TableSink(root)
        self._histories = HistorySink(root)

    def prepare(self, plan: ViewPlan) -> None:
        """Creates the view's tables; see `Sink.prepare`.

        Raises:
            TableTornError: The log of one is damaged.
        """
        refuse_torn(self._root, plan.name)
        self._of(plan).prepare(plan)

    def mark(self, plan: ViewPlan) -> str | None:
        """Returns Delta's own id of the view's table; None if it is missing or damaged.

        Raises:
            SinkUnavailableError: It cannot be read for another reason.
        """
        path = str(self._root / plan.name)
        try:
            if not DeltaTable.is_deltatable(path):
                return None
            return str(DeltaTable(path).metadata().id)
        except (DeltaError, OSError) as error:
            if torn(self._root / plan.name, every=True) is not None:
                return None
            raise unavailable(plan, error) from None

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes; see `Sink.apply`."""
        try:
            return self._of(plan).apply(plan, changes)
        except SinkUnavailableError:
            refuse_torn(self._root, plan.name, every=True)
            raise

    def apply_rows(self, plan: ViewPlan, rows: pa.Table, deletes: pa.Table) -> Applied:
        """Writes rows and deletes of a view without a history; see `TableSink.apply_rows`."""
        try:
            return self._latest.apply_rows(plan, rows, deletes)
        except SinkUnavailableError:
            refuse_torn(self._root, plan.name, every=True)
            raise

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks keys up; see `Sink.versions`."""
        return self._of(plan).versions(plan, changes)

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Looks keys up; see `Sink.stored`."""
        return self._of(plan).stored(plan, keys)

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """Removes rows, or ends states; see `Sink.sweep`."""
        return self._of(plan).sweep(plan, below_version, reads)

    def version(self, plan: ViewPlan) -> int:
        """Returns the newest version of the view's table; see `TableSink.version`."""
        return self._of(plan).version(plan)

    def version_at(self, plan: ViewPlan, boundary: int) -> int | None:
        """Returns the newest version of the view's table; see `TableSink.version_at`."""
        return self._of(plan).version_at(plan, boundary)

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads what each key is now; see `Sink.documents`."""
        return self._of(plan).documents(plan)

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads what each key is now; see `Sink.parts`."""
        return self._of(plan).parts(plan)

    def drop(self, plan: ViewPlan) -> None:
        """Deletes the tables of an inactive version.

        Raises:
            SinkUnavailableError: They cannot be removed.
        """
        try:
            with WriterLock(self._root / f".{plan.name}.lock", wait=True):
                name = plan.name
                for folder in (name, f"{name}.deleted", f"{name}.changes", f".{name}.filling"):
                    if (self._root / folder).is_dir():
                        shutil.rmtree(self._root / folder)
        except OSError as error:
            raise unavailable(plan, error) from None
        self.close()

    def erase(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]], through: int) -> int:
        """Erases a history's records of keys up to a version; see `HistorySink.erase`.

        Other views only have the present rows.
        """
        return 0 if plan.history is None else self._histories.erase(plan, keys, through)

    def batches(self, plan: ViewPlan) -> Iterator[pa.RecordBatch]:
        """Reads the rows of `parts` as they are stored; not for histories.

        Raises:
            SinkUnavailableError: The table cannot be read.
        """
        return self._latest.batches(plan)

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads rows with their versions; see `Sink.versioned`."""
        return self._of(plan).versioned(plan)

    def close(self) -> None:
        """Closes the open tables."""
        self._latest.close()
        self._histories.close()

    def _of(self, plan: ViewPlan) -> TableSink:
        return self._latest if plan.history is None else self._histories
