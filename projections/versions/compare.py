"""Compares two versions of a view before readers are moved from one to the other.

Both are read at one boundary, the last published one, so timing explains no difference. The
comparison separates differences that the changed definition explains from the others: columns that
only one version has, or that changed their type, and rows that only one of the two definitions
admits. Where the definitions agree, the rows must agree too.

Rows are matched by the columns that identify them in both. A history has several rows per key. If
only one version is a history, or the start of a state is defined differently, the comparison uses
the current row of each key and counts earlier states as explained. Versions without anything in
common are not compared; the result says so, and a cutover then needs an explicit option.

A view that is paused because its table changed is compared in its present state: columns whose type
or name the change altered, or that it dropped, are excluded, and rows written since then differ.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdc.table import ColumnKind
from cdc.values import decode
from projections.common import store_lock
from projections.definition.columns import BOOKKEEPING, HISTORY_COLUMNS, ROW_ID_COLUMN
from projections.definition.views import Store
from projections.errors import VersionBehindError
from projections.publishing.published_versions import Published
from projections.stores.delta.table_diff import (
    ComparedVersion,
    TableDifference,
    compare_sides,
)
from projections.stores.factory import open_sink
from projections.versions.compared_by_job import equal_by_job
from projections.versions.document_match import VersionDocuments, match_keys, match_rows
from projections.versions.version_pair import RowFilter, VersionPair

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import psycopg

    from cdc.table import Column
    from projections.changes.sink import Sink
    from projections.definition.diff import DefinitionChange
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan

EXAMPLES: Final = 10
_OWN: Final = frozenset({ROW_ID_COLUMN, *BOOKKEEPING})
"""Internal columns."""


@dataclass(slots=True)
class VersionDifference:
    """How a version differs from the active one.

    Attributes:
        unexplained: Differences that the definitions do not explain: rows that only one version
            has, and different values.
        at: The boundary of the comparison; empty if there was none.
        store: The store of the comparison; None if there was none.
        explained: Number of rows or columns that each difference of the definitions explains.
        stands_since: When the active version was paused; None if it is not paused.
        incomparable: Why they were not compared; None if they were.
    """

    unexplained: TableDifference
    at: str
    store: Store | None
    explained: dict[str, int] = field(default_factory=dict)
    stands_since: str | None = None
    incomparable: str | None = None

    @property
    def same(self) -> bool:
        """Returns whether the definitions explain every difference."""
        return self.incomparable is None and self.unexplained.same


def compare_versions(  # noqa: PLR0913  # two versions, their plans and their change
    connection: psycopg.Connection[Any],
    config: JobConfig,
    old: ViewPlan,
    new: ViewPlan,
    change: DefinitionChange,
    *,
    still: bool = False,
) -> VersionDifference:
    """Compares a version with the active one.

    Two versions with Delta tables are compared there, at the last published boundary. Otherwise
    they are compared in a store that both have, while batches of that store wait. The same holds
    for a history whose rows have their own times, since its table alone does not show the current
    row of a key.

    Args:
        connection: To the source, in autocommit.
        config: The job's configuration.
        old: The active version.
        new: The other one.
        change: How the definitions differ.
        still: Whether the active version is paused because its table changed.

    Raises:
        VersionBehindError: They have not been published at one boundary yet.
        SinkError: A store cannot be read.
    """
    pair = VersionPair(old, new, change, still)
    if pair.incomparable is not None:
        return VersionDifference(TableDifference(()), "", None, incomparable=pair.incomparable)
    if Store.TABLE in pair.stores and not pair.by_sequence:
        compared = _in_tables(config, pair)
    else:
        store = Store.TABLE if Store.TABLE in pair.stores else min(pair.stores)
        with (
            store_lock.exclusive(connection, config.source, [store]),
            closing(open_sink(store, config.addresses)) as sink,
        ):
            compared = _in_store(sink, store, pair)
    _move_explained(compared, pair)
    return compared


def _in_tables(config: JobConfig, pair: VersionPair) -> VersionDifference:
    tables, old, new = config.addresses.tables, pair.old, pair.new
    latest = Published(tables, config.source).latest()
    sides = {} if latest is None else latest.views
    one, other = sides.get(old.name), sides.get(new.name)
    behind = not pair.still and one and other and (one.epoch, one.lsn) != (other.epoch, other.lsn)
    if one is None or other is None or behind:
        raise VersionBehindError(
            f"{new.name} and {old.name} have not been published at one boundary yet",
            detail=f"{one and one.applied_through} and {other and other.applied_through}",
            hint="the job publishes them: headwater status; then retry",
        )
    tables_read = (tables / old.name, one.version), (tables / new.name, other.version)
    before, after = (
        ComparedVersion(path, version, shared.passed if shared.reads else None, shared.reads)
        for (path, version), shared in zip(tables_read, pair.shared_rows(), strict=True)
    )
    of_states = HISTORY_COLUMNS if pair.of_now else ()
    difference = compare_sides(
        before,
        after,
        pair.keys,
        examples_max=EXAMPLES,
        # the time of delivery is no part of a value
        left_out={*pair.retyped, *_OWN, *of_states, *old.times_of_delivery, *new.times_of_delivery},
        equal=equal_by_job(config, pair, (one.version, other.version)),
    )
    since = str(one.applied_through) if pair.still else None
    at = str(other.applied_through)
    return VersionDifference(difference, at, Store.TABLE, dict(difference.excluded), since)


def _in_store(sink: Sink, store: Store, pair: VersionPair) -> VersionDifference:
    """Compares the documents of both versions; every store has documents."""
    old, new = pair.old, pair.new
    difference = TableDifference(pair.keys)
    names = tuple(old.schema.by_name), tuple(new.schema.by_name)
    difference.columns_gone = tuple(n for n in names[0] if n not in names[1])
    difference.columns_added = tuple(n for n in names[1] if n not in names[0])
    filters = pair.row_filters()
    before, after = (
        VersionDocuments(partial(_let_in, sink, plan, row_filter), partial(sink.documents, plan))
        for plan, row_filter in zip((old, new), filters, strict=True)
    )
    if pair.keys and pair.keys != (ROW_ID_COLUMN,):
        columns = [name for name in pair.columns if name not in pair.keys]
        match_keys(difference, columns, before, after, EXAMPLES)
    else:
        match_rows(difference, pair.columns, before, after, EXAMPLES)
    explained = dict(filters[0].excluded + filters[1].excluded)
    since = "its table has changed" if pair.still else None
    return VersionDifference(difference, "a moment without batches", store, explained, since)


def _let_in(sink: Sink, plan: ViewPlan, row_filter: RowFilter) -> Iterator[Mapping[str, Any]]:
    for document in sink.documents(plan):
        reason = None
        if row_filter.columns:
            row = {each.name: _exact(each, document.get(each.name)) for each in row_filter.columns}
            reason = row_filter.exclusion(row)
        if reason is None:
            yield document
        else:
            row_filter.excluded[reason] += 1


def _exact(column: Column, value: Any) -> object:
    # documents contain floats as text
    floats = column.kind is ColumnKind.FLOAT and value is not None
    return decode(column, str(value) if floats else value)


def _move_explained(compared: VersionDifference, pair: VersionPair) -> None:
    """Moves explained columns that only one version has to `explained`."""
    difference, change = compared.unexplained, pair.change
    compared.explained |= dict.fromkeys(pair.retyped.values(), 1)
    explained = set(change.columns)
    if change.rows and (pair.old.history is None) != (pair.new.history is None):
        explained.update(HISTORY_COLUMNS)

    def left(names: Sequence[str]) -> tuple[str, ...]:
        public = [name for name in names if name not in _OWN]
        explained_names = [name for name in public if pair.still or name in explained]
        compared.explained |= dict.fromkeys((f"column {name}" for name in explained_names), 1)
        return tuple(name for name in public if name not in explained_names)

    difference.columns_added = left(difference.columns_added)
    difference.columns_gone = left(difference.columns_gone)
