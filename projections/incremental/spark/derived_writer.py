"""DerivedWriter: writes the recomputed rows of a derived view, in a Spark worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from projections.common.fault import FaultError
from projections.errors import ProjectionError
from projections.incremental.expectation_filter import ExpectationFilter
from projections.planning.job_spec import writing
from projections.stores.delta.derived_table import DerivedTable, settled

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from projections.common.driver_lock import DriverToken
    from projections.definition.expectations.expectation import Expectation
    from projections.stores.delta.derived_table import Origin

WRITTEN_DDL: Final = "kept long, gone long, failed map<string,long>"
_WRITTEN: Final = pa.schema(
    [("kept", pa.int64()), ("gone", pa.int64()), ("failed", pa.map_(pa.string(), pa.int64()))]
)


@dataclass(frozen=True, slots=True)
class DerivedWriter:
    """Writes the changed rows of a view, in a Spark worker.

    Attributes:
        root: Folder of the tables.
        view: Name of the view.
        keys: Columns that identify a row.
        schema: Columns of the rows.
        version: Their boundary, as a number.
        replaces_all: Whether they replace all rows of the view.
        expectations: Its expectations.
        origin: The versions of the inputs.
    """

    root: Path
    view: str
    keys: tuple[str, ...]
    schema: pa.Schema
    version: int
    replaces_all: bool
    expectations: tuple[Expectation, ...] = ()
    driver_token: DriverToken | None = None
    origin: Origin | None = None

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Writes all batches of the task; yields the numbers of rows kept, deleted and failed."""
        given = list(batches)
        rows = (
            pa.Table.from_batches(given).cast(self.schema) if given else self.schema.empty_table()
        )
        table = DerivedTable(self.root, self.view, self.keys)
        rows = settled(rows, self.keys)
        expectation_filter = ExpectationFilter(self.view, self.expectations)
        try:
            with writing(self.driver_token):
                marked = expectation_filter.marked(rows)
                kept, gone = table.write(
                    marked, self.version, replaces_all=self.replaces_all, origin=self.origin
                )
        except ProjectionError as error:
            raise FaultError(error) from None
        written = {
            "kept": [kept],
            "gone": [gone],
            "failed": [list(expectation_filter.failed.items())],
        }
        yield pa.RecordBatch.from_pydict(written, schema=_WRITTEN)
