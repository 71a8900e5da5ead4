"""Verification of derived views: each is compared with its query, run over its input tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import DeltaTable

from projections.changes.documents import DocumentForm
from projections.common.fault import Fault
from projections.definition.views import Store
from projections.errors import FunctionLostError, PlanError
from projections.incremental.row_form import derived_plan
from projections.incremental.spark.maintainer import DerivedMaintainer
from projections.incremental.spark.table_reader import TableVersions
from projections.job.batch.compare_derived import counted, require_unique, wrong
from projections.job.spark.session import session_beside
from projections.publishing.other_sources import NO_VIEWS, published_views
from projections.publishing.published_versions import Published
from projections.verification.report import EXAMPLES, KeyFinding, Uncompared, ViewReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from projections.definition.views import DerivedView
    from projections.planning.job_spec import JobSpec
    from projections.publishing.other_sources import OtherViews
    from projections.publishing.published_content import PublishedVersion, TableVersion

_NAMED: Final = 10
"""Most wrong keys that are named; a repair computes the whole view again."""

_AT_ONCE: Final = 2
"""Views that are compared at once: one is planned while another's rows are read."""


def verify_derived(
    spec: JobSpec, uncompared: Callable[[Uncompared], None] | None = None
) -> list[ViewReport]:
    """Compares every derived view with its query, in batch, at the published boundary.

    Writes may continue meanwhile: the versions of all tables are fixed.

    Args:
        spec: The job.
        uncompared: Receives each view whose function is lost, while others are compared. Without
            it, the loss is raised.

    Returns:
        A report for each published view.

    Raises:
        FunctionLostError: The stored function of a view is gone, or was altered.
        DuplicateKeyError: A view is not maintained, as its key does not identify its rows; names an
            example.
    """
    published = Published(spec.config.addresses.tables, spec.config.source)
    latest, physical_names = published.latest(), published.current()
    if latest is None or not spec.derived:
        return []
    session = session_beside(spec.config)
    tables = spec.config.addresses.tables
    others = published_views(tables, spec.cross_reads.read)
    # only by Delta's own reader, which is independent of the one that computed the views
    versions = TableVersions(session, tables, files_max=0)

    def verified(view: DerivedView) -> ViewReport | None:
        maintainer = DerivedMaintainer(tables, view, versions)
        try:
            return derived_report(maintainer, latest, physical_names, spec.config.source, others)
        except FunctionLostError as error:
            if uncompared is None:
                raise
            uncompared(Uncompared(view.name, Store.TABLE, Fault.of(error)))
            return None

    with ThreadPoolExecutor(_AT_ONCE, "verification") as pool:
        return [report for report in pool.map(verified, spec.derived) if report is not None]


def derived_report(
    maintainer: DerivedMaintainer,
    latest: PublishedVersion,
    physical_names: Mapping[str, str],
    source: str,
    others: OtherViews = NO_VIEWS,
) -> ViewReport | None:
    """Compares one derived view with its query; see `verify_derived`.

    Args:
        maintainer: The view's maintainer.
        latest: The published version.
        physical_names: The active version of each view; see `Published.current`.
        source: Name of the source.
        others: Its inputs from other sources.

    Returns:
        The report; None if the view is not published.
    """
    known = {**latest.views, **others.tables}
    _require_unique(maintainer, known, {**physical_names, **others.physical_names})
    own = latest.views.get(maintainer.view.name)
    return None if own is None else _report(maintainer, own, source)


def _require_unique(
    maintainer: DerivedMaintainer,
    known: Mapping[str, TableVersion],
    physical_names: Mapping[str, str],
) -> None:
    """Checks the keys of a view that is behind its inputs."""
    view, own = maintainer.view, known.get(maintainer.view.name)
    read = [physical_names.get(name, name) for name in view.inputs]
    if not known.keys() >= set(read):
        return
    newest = {place: known[place].version for place in read}
    if own is None or own.made_from != newest:
        require_unique(maintainer.expected(maintainer.result(newest)), view.keys, view.name)


def _report(maintainer: DerivedMaintainer, table: TableVersion, source: str) -> ViewReport:
    view = maintainer.view
    computed = maintainer.result(table.made_from)
    result = maintainer.expected(computed)
    withheld = 0 if result is computed else computed.count() - result.count()
    stored = maintainer.versions.rows(view.name, table.version)
    counts = counted(result, stored, view.keys)
    bad = counts.missing or counts.extra or counts.different
    wrong_keys = wrong(result, stored, view.keys, counts, _NAMED) if bad else []
    text = _texts(maintainer, table, source)
    findings = tuple(
        KeyFinding(text(each.key), each.verdict, 0, each.columns) for each in wrong_keys
    )
    columns = {name for each in findings[:EXAMPLES] for name in each.columns}
    return ViewReport(
        view=view.name,
        store=Store.TABLE,
        rows=counts.stored,
        missing=counts.missing,
        extra=counts.extra,
        different=counts.different,
        applied_through=table.applied_through,
        examples=tuple(str(each) for each in findings[:EXAMPLES]),
        columns=tuple(name for name in result.columns if name in columns),
        withheld=withheld,
        duplicated=counts.duplicated,
        verified_through=None if bad else table.applied_through,
        findings=findings,
    )


def _texts(
    maintainer: DerivedMaintainer, table: TableVersion, source: str
) -> Callable[[tuple[object, ...]], str]:
    """Returns the function that makes a key's text, as in search and cache."""
    place = DeltaTable(str(maintainer.tables / maintainer.view.name), version=table.version)
    try:
        plan = derived_plan(maintainer.view, source, pa.schema(place.schema().to_arrow()))
    except PlanError:  # a key that only a table can hold
        return lambda key: ", ".join(map(str, key))
    return DocumentForm(plan).name_of
