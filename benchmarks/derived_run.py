"""Views made from others, brought from boundary to boundary as the job does, without servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc.table import TableName, TableSchema
from headwater.runtime.java.jars import ensure
from projections.definition.views import Store
from projections.job.spark.session import session_of_batches, start_session
from projections.job.tasks.derived_tables import DerivedTablesTask
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta.table_format import FEED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.definition.views import DerivedView

_NOWHERE: Final = "redis://127.0.0.1:1"
_VERSION: Final = "_version"


@contextmanager
def spark_session(home: Path) -> Iterator[SparkSession]:
    """A session as the job has it, on two cores.

    Args:
        home: Folder for what it leaves.
    """
    session = start_session(_spec(home, ()).config)
    try:
        yield session
    finally:
        session.stop()


class DerivedRun:
    """Some views and the tables that they are made from, in a folder of their own.

    Args:
        session: Where.
        home: The folder.
        views: The views.
        inputs: The tables that they are made from, as they are at first.
        keys: Columns that identify the rows of a table, where there are any.
    """

    def __init__(
        self,
        session: SparkSession,
        home: Path,
        views: tuple[DerivedView, ...],
        inputs: Mapping[str, pa.Table],
        keys: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        spec = _spec(home, views, tuple(_plan(*each) for each in (keys or {}).items()))
        self._tables = spec.config.addresses.tables
        self._published = Published(self._tables, spec.config.source)
        self._inputs = tuple(inputs)
        self._boundary = 100
        for name, rows in inputs.items():
            stamped = self._stamped(rows)
            DeltaTable.create(str(self._tables / name), stamped.schema, configuration=dict(FEED))
            write_deltalake(str(self._tables / name), stamped, mode="append")
        self._deriver = DerivedTablesTask(session, session_of_batches(session), spec)

    def add(self, name: str, rows: pa.Table) -> None:
        """Adds rows to an input, for the next boundary."""
        write_deltalake(str(self._tables / name), self._stamped(rows), mode="append")

    def bring(self) -> dict[str, float]:
        """Brings all views to another boundary; returns how many seconds each took."""
        self._boundary += 1
        versions = {name: DeltaTable(str(self._tables / name)).version() for name in self._inputs}
        version = self._published.publish(1, self._boundary, versions, complete=False)
        if version is None:
            raise RuntimeError("nothing was published")
        self._published.complete(version, self._deriver.derived(version))
        if self._deriver.faults:
            raise RuntimeError(str(self._deriver.faults))
        return dict(self._deriver.seconds)

    def table(self, view: str) -> pa.Table:
        """What a view has."""
        return DeltaTable(str(self._tables / view)).to_pyarrow_table()

    def _stamped(self, rows: pa.Table) -> pa.Table:
        return rows.append_column(_VERSION, pa.array(np.full(len(rows), self._boundary)))


def _plan(name: str, keys: tuple[str, ...]) -> ViewPlan:
    """What the job knows of a mirror; of its columns none that is asked for here."""
    table = TableSchema(TableName("public", name), (), ())
    return ViewPlan(name, "benchmark", "", table, keys, frozenset([Store.TABLE]))


def _spec(home: Path, views: tuple[DerivedView, ...], plans: tuple[ViewPlan, ...] = ()) -> JobSpec:
    places = (_NOWHERE, "", "", home, _NOWHERE, "", tuple(ensure("spark", progress=False)))
    return JobSpec(JobConfig("benchmark", *places, master="local[2]"), plans, derived=views)
