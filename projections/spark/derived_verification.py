"""Verification of derived views: each beside its query, run over the tables it was made from."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from projections.published import Published
from projections.search.fields import DELETED_FIELD
from projections.spark.derivation.comparison import differences, require_unique
from projections.spark.derived import DerivedKeeper
from projections.spark.session import BESIDE, start_session
from projections.spark.table_versions import TableVersions
from projections.view import Store
from projections.view_report import ViewReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from projections.published import PublishedVersion, TableVersion
    from projections.spec import JobSpec


def verify_derived(spec: JobSpec) -> list[ViewReport]:
    """Compares every derived view with its query, in batch, at the boundary that is published.

    Writes may go on meanwhile: the versions of all tables are fixed.

    Args:
        spec: The job.

    Returns:
        A report for each view that is published.

    Raises:
        DuplicateKeyError: A view is not kept as its key does not identify its rows; it has an
            example.
    """
    latest = Published(spec.addresses.tables, spec.source).latest()
    if latest is None or not spec.derived:
        return []
    session = start_session(spec if spec.local else replace(spec, master=BESIDE))
    tables = spec.addresses.tables
    # by Delta's own reader alone: what is verified was made from what the other one reads
    versions = TableVersions(session, tables, files_max=0)
    reports = []
    for view in spec.derived:
        keeper = DerivedKeeper(session, tables, view, versions)
        _require_unique(keeper, latest)
        if view.name in latest.views:
            reports.append(_report(keeper, latest.views[view.name]))
    return reports


def _require_unique(keeper: DerivedKeeper, latest: PublishedVersion) -> None:
    """Looks at the rows of a view that has stayed behind its inputs."""
    view, own = keeper.view, latest.views.get(keeper.view.name)
    if not latest.views.keys() >= set(view.inputs):
        return
    newest = {name: latest.views[name].version for name in view.inputs}
    if own is None or own.made_from != newest:
        require_unique(keeper.expected(keeper.result(newest)), view.keys, view.name)


def _report(keeper: DerivedKeeper, table: TableVersion) -> ViewReport:
    view = keeper.view
    computed = keeper.result(table.made_from)
    result = keeper.expected(computed)
    withheld = 0 if result is computed else computed.count() - result.count()
    stored = keeper.versions.rows(view.name, table.version)
    found = differences(result, stored, view.keys)
    extra = found.where(DELETED_FIELD).count()
    lacking = found.where(~fn.col(DELETED_FIELD))
    different = _having(lacking, stored, view.keys).count()
    return ViewReport(
        view=view.name,
        store=Store.TABLE,
        rows=stored.count(),
        missing=lacking.count() - different,
        extra=extra,
        different=different,
        applied_through=table.applied_through,
        withheld=withheld,
    )


def _having(rows: DataFrame, others: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows whose key others have."""
    there = others.select(*(fn.col(name).alias(f"_there_{name}") for name in keys))
    same = reduce(and_, (fn.col(name).eqNullSafe(fn.col(f"_there_{name}")) for name in keys))
    return rows.join(there, same, "left_semi")
