"""The Delta tables of a view's latest rows: opened once, read by key or as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from projections.changes.row_batch import ROWS_AT_ONCE, source_columns
from projections.common.file_lock import WriterLock
from projections.definition.columns import VERSION_COLUMN
from projections.errors import SinkRefusedError, SinkUnavailableError
from projections.stores.delta import key_equality
from projections.stores.delta.arrow import decoded_rows, deletes_schema, row_part, table_schema
from projections.stores.delta.table_format import CONFIGURATION, FLOOR, LOADED_AT, limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from projections.changes.row_batch import RowPart
    from projections.planning.view_plan import ViewPlan

_ATTEMPTS: Final = 3

_T = TypeVar("_T")


class ViewTables:
    """The open tables of views: `<root>/<view>`, and `<root>/<view>.deleted` for its deletes.

    A table stays open between calls and is updated when its log has a later commit. Work that
    writes runs under a lock of the view that every writer on this machine respects.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tables: dict[str, DeltaTable] = {}
        self._deletes: dict[str, tuple[int, pa.Table]] = {}  # by table; its version, its rows
        self._passed: dict[str, DeltaTable] = {}  # that a boundary has passed

    def version(self, plan: ViewPlan) -> int:
        """Returns the newest version of the view's table.

        Raises:
            SinkUnavailableError: It cannot be read.
        """
        return self._committed(plan, lambda: self._table(plan.name).version())

    def version_at(self, plan: ViewPlan, boundary: int) -> int | None:
        """Returns the newest version; None if rows of a load may be beyond a boundary.

        Args:
            plan: The view.
            boundary: The boundary that the table has reached, as a version.

        Raises:
            SinkUnavailableError: The table cannot be read.
        """

        def look() -> int | None:
            table = self._table(plan.name)
            if self._passed.get(plan.name) is not table:
                if self._number(plan, LOADED_AT) > boundary:
                    return None
                self._passed[plan.name] = table  # and at each later boundary
            return table.version()

        return self._committed(plan, look)

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row of the newest version; see `Sink.documents`."""
        return (document for _, document in self.versioned(plan))

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads every live row of the newest version; see `Sink.parts`."""
        names = source_columns(plan)
        for batch in self.batches(plan):
            yield row_part(plan, pa.Table.from_batches([batch]), names)

    def batches(self, plan: ViewPlan) -> Iterator[pa.RecordBatch]:
        """Reads every live row of the newest version, with its `source_columns`.

        Raises:
            SinkUnavailableError: The table cannot be read.
        """
        try:
            dataset = self._table(plan.name).to_pyarrow_dataset()
            yield from dataset.to_batches(
                columns=list(source_columns(plan)), batch_size=ROWS_AT_ONCE
            )
        except (
            DeltaError,
            OSError,
            pa.ArrowException,
        ) as error:  # columns may change meanwhile
            raise unavailable(plan, error) from None

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every live row of the newest version, with its version; see `Sink.versioned`."""
        try:
            dataset = self._table(plan.name).to_pyarrow_dataset()
            names = tuple(column.name for column in plan.schema.columns)
            for batch in dataset.to_batches(columns=[*names, VERSION_COLUMN]):
                versions = batch.column(VERSION_COLUMN).to_pylist()
                part = row_part(plan, pa.Table.from_batches([batch]), names)
                yield from zip(versions, part.documents(), strict=True)
        except (
            DeltaError,
            OSError,
            pa.ArrowException,
        ) as error:  # columns may change meanwhile
            raise unavailable(plan, error) from None

    def close(self) -> None:
        """Closes the open tables."""
        self._tables.clear()

    def _committed(self, plan: ViewPlan, work: Callable[[], _T]) -> _T:
        """Runs work under the view's lock, and retries it after a conflicting commit."""
        with self._locked(plan):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return work()
                except CommitFailedError as error:
                    self._tables.clear()
                    if attempt == _ATTEMPTS:
                        raise unavailable(plan, error) from None
                except (DeltaError, OSError) as error:
                    self._tables.clear()
                    raise unavailable(plan, error) from None
        raise AssertionError  # the loop returns or raises

    def _number(self, plan: ViewPlan, name: str) -> int:
        table = self._table(plan.name)
        return int(table.metadata().configuration.get(name, "0"))

    def _floor(self, plan: ViewPlan) -> int:
        """Returns the version below which the view refuses changes."""
        return self._number(plan, FLOOR)

    def _deleted_versions(self, plan: ViewPlan, wanted: pa.Table) -> dict[tuple[object, ...], int]:
        """Returns the versions of the recorded deletes of these keys."""
        deletes = having(self._every_delete(plan), plan, wanted)
        return dict(zip(keys_of(plan, deletes), deletes[VERSION_COLUMN].to_pylist(), strict=True))

    def _every_delete(self, plan: ViewPlan) -> pa.Table:
        name = f"{plan.name}.deleted"
        table = self._table(name)
        known = self._deletes.get(name)
        if known is None or known[0] != table.version():
            known = table.version(), table.to_pyarrow_dataset().to_table()
            self._deletes[name] = known
        return known[1]

    def _live_rows(
        self, plan: ViewPlan, wanted: pa.Table
    ) -> dict[tuple[object, ...], tuple[int, dict[str, object]]]:
        """Returns version and values of the stored rows of these keys."""
        return {place: (version, row) for place, version, row in self._rows(plan, wanted)}

    def _rows(
        self, plan: ViewPlan, wanted: pa.Table
    ) -> Iterator[tuple[tuple[object, ...], int, dict[str, object]]]:
        """Yields key, version and values of the stored rows of these keys."""
        table = self._table(plan.name)
        # filtered after the read: pyarrow fails on the statistics of texts
        for batch in table.to_pyarrow_dataset().to_batches():
            rows = having(pa.Table.from_batches([batch]), plan, wanted)
            if rows.num_rows:
                versions = rows[VERSION_COLUMN].to_pylist()
                decoded = decoded_rows(plan, rows)
                yield from zip(keys_of(plan, rows), versions, decoded, strict=True)

    def _create(
        self, name: str, schema: pa.Schema, partition_by: list[str] | None = None
    ) -> DeltaTable:
        """Opens a table, and creates it if it is missing."""
        path = str(self._root / name)
        if name not in self._tables and not DeltaTable.is_deltatable(path):
            properties = CONFIGURATION | limits(schema)
            DeltaTable.create(path, schema, partition_by=partition_by, configuration=properties)
        return self._table(name)

    def _table(self, name: str) -> DeltaTable:
        """Opens a table; a missing one is an error: its version of the view may be dropped."""
        if not (self._root / name).is_dir():
            self._tables.pop(name, None)
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = DeltaTable(str(self._root / name))
        elif self._later(name, table).is_file():
            table.update_incremental()
        return table

    def _later(self, name: str, table: DeltaTable) -> Path:
        """Returns the path of the commit that follows the open version."""
        return self._root / name / "_delta_log" / f"{table.version() + 1:020}.json"

    def _both(self, plan: ViewPlan) -> list[tuple[str, pa.Schema]]:
        tables = [(plan.name, table_schema(plan))]
        if not plan.append_only:
            tables.append((f"{plan.name}.deleted", deletes_schema(plan)))
        return tables

    def _locked(self, plan: ViewPlan) -> WriterLock:
        return WriterLock(self._root / f".{plan.name}.lock", wait=True)


def having(table: pa.Table, plan: ViewPlan, wanted: pa.Table) -> pa.Table:
    """Returns rows whose first key column has a wanted value, a superset for keys of several."""
    first = plan.keys[0]
    values = wanted.column(first).combine_chunks()
    return table.filter(key_equality.among(table.column(first), values))


def keys_of(plan: ViewPlan, table: pa.Table) -> list[tuple[object, ...]]:
    """Returns the key of each row, in the order of the rows."""
    return key_equality.values(table, plan.keys)


def unavailable(plan: ViewPlan, error: Exception) -> SinkUnavailableError | SinkRefusedError:
    """Returns the error for a table that cannot be read or written."""
    # the library's own text can contain values
    return SinkUnavailableError(
        f"view {plan.name}: its table cannot be read or written", detail=type(error).__name__
    )
