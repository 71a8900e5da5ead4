"""Verification of derived views: each beside its query, run over the tables it was made from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from projections.published import Published
from projections.spark.derivation.comparison import counted, require_unique
from projections.spark.derived import DerivedKeeper
from projections.spark.session import session_beside
from projections.spark.table_versions import TableVersions
from projections.view import Store
from projections.view_report import ViewReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.published import PublishedVersion, TableVersion
    from projections.spec import JobSpec
    from projections.view import DerivedView

_AT_ONCE: Final = 2
"""Views that are compared at once: one is planned while rows of another are read."""


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
    published = Published(spec.addresses.tables, spec.source)
    latest, places = published.latest(), published.current()
    if latest is None or not spec.derived:
        return []
    session = session_beside(spec)
    tables = spec.addresses.tables
    # by Delta's own reader alone: what is verified was made from what the other one reads
    versions = TableVersions(session, tables, files_max=0)

    def verified(view: DerivedView) -> ViewReport | None:
        keeper = DerivedKeeper(tables, view, versions)
        _require_unique(keeper, latest, places)
        own = latest.views.get(view.name)
        return None if own is None else _report(keeper, own)

    with ThreadPoolExecutor(_AT_ONCE, "verification") as pool:
        return [report for report in pool.map(verified, spec.derived) if report is not None]


def _require_unique(
    keeper: DerivedKeeper, latest: PublishedVersion, places: Mapping[str, str]
) -> None:
    """Looks at the rows of a view that has stayed behind its inputs."""
    view, own = keeper.view, latest.views.get(keeper.view.name)
    read = [places.get(name, name) for name in view.inputs]
    if not latest.views.keys() >= set(read):
        return
    newest = {place: latest.views[place].version for place in read}
    if own is None or own.made_from != newest:
        require_unique(keeper.expected(keeper.result(newest)), view.keys, view.name)


def _report(keeper: DerivedKeeper, table: TableVersion) -> ViewReport:
    view = keeper.view
    computed = keeper.result(table.made_from)
    result = keeper.expected(computed)
    withheld = 0 if result is computed else computed.count() - result.count()
    stored = keeper.versions.rows(view.name, table.version)
    found = counted(result, stored, view.keys)
    return ViewReport(
        view=view.name,
        store=Store.TABLE,
        rows=found.stored,
        missing=found.missing,
        extra=found.extra,
        different=found.different,
        applied_through=table.applied_through,
        withheld=withheld,
        verified_through=None
        if found.missing or found.extra or found.different
        else table.applied_through,
    )
