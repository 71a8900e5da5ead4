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

from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from cdc.table import ColumnKind, TableSchema
from cdc.values import decode
from projections.common import store_lock
from projections.definition.columns import BOOKKEEPING, HISTORY_COLUMNS, ROW_ID_COLUMN
from projections.definition.views import Store
from projections.errors import SinkUnavailableError, VersionBehindError
from projections.publishing.published_versions import Published
from projections.stores.delta.arrow import decoded_rows
from projections.stores.delta.table_diff import (
    ComparedVersion,
    TableDifference,
    compare_sides,
)
from projections.stores.factory import open_sink
from projections.versions.document_match import VersionDocuments, match_keys, match_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import psycopg

    from cdc.table import Column
    from projections.changes.sink import Sink
    from projections.definition.diff import DefinitionChange
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan

EXAMPLES: Final = 10
_VALID_FROM, _, _CURRENT, _RECORDED_FROM, _ = HISTORY_COLUMNS
_TYPE: Final = "type"
"""Column of every view of events: the id of a row's event."""

_EARLIER: Final = "earlier states, which its definition computes differently"
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
    pair = _Pair(old, new, change, still)
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


@dataclass(frozen=True)
class _Pair:
    """Two versions, with the stores, columns and keys that they share."""

    old: ViewPlan
    new: ViewPlan
    change: DefinitionChange
    still: bool

    @property
    def stores(self) -> frozenset[Store]:
        """Returns the stores that both have."""
        return self.old.to & self.new.to

    @cached_property
    def incomparable(self) -> str | None:
        """Returns why they cannot be compared; None if they can."""
        old, new = self.old, self.new
        if (old.events is None) != (new.events is None):
            return "one is a view of a table, the other of events"
        if not self.stores:
            before, now = (", ".join(sorted(plan.to)) for plan in (old, new))
            return f"no store has both: {before}; {now}"
        if not self.keys and not self.columns:
            return "they have no column in common"
        return None

    @cached_property
    def retyped(self) -> dict[str, str]:
        """Returns the columns whose type changed for a known reason, with that reason."""
        was, now = self.old.schema.by_name, self.new.schema.by_name
        return {
            name: f"column {name}: {column.type_name} to {now[name].type_name}"
            for name, column in was.items()
            if name in now
            and now[name].type_name != column.type_name
            and (self.still or name in self.change.columns)
        }

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Returns the columns to compare."""
        now = self.new.schema.by_name
        return tuple(n for n in self.old.schema.by_name if n in now and n not in self.retyped)

    @property
    def of_now(self) -> bool:
        """Returns whether only the current row of each key is compared, without earlier states.

        The rows that a history admits decide when its states end.
        """
        old, new = self.old, self.new
        if old.history is None and new.history is None:
            return False
        other_rows = self.change.rows and old.expectations != new.expectations
        return old.history != new.history or other_rows

    @property
    def by_sequence(self) -> bool:
        """Returns whether a history's current state may differ from the key's current row."""
        made = (plan.history for plan in (self.old, self.new))
        return self.of_now and any(each is not None and each.sequence_by for each in made)

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Returns the columns by which rows are matched; empty to match whole rows."""
        old, new = self.old, self.new
        if old.keys == new.keys:
            states = old.history is not None and not self.of_now
            return (*old.keys, _VALID_FROM, _RECORDED_FROM) if states else old.keys
        both = old.schema.by_name.keys() & new.schema.by_name.keys()
        return next((plan.keys for plan in (new, old) if {*plan.keys} <= both), ())


class _RowFilter:
    """Excludes rows of one version that the other one's definition does not admit.

    Attributes:
        reads: Columns that the decision needs; without any, all rows are admitted.
        excluded: Number of excluded rows, by reason.
    """

    def __init__(self, own: ViewPlan, other: ViewPlan, change: DefinitionChange) -> None:
        self.excluded: Counter[str] = Counter()
        self._other = other
        self._types: frozenset[str] | None = None
        self._inspection = other.inspection()
        wanted: set[str] = set()
        by_name = own.schema.by_name
        # without those columns the filter cannot decide
        decides = self._inspection.columns <= by_name.keys()
        self._inspects = bool(change.rows and decides and own.expectations != other.expectations)
        if self._inspects:
            wanted |= self._inspection.columns
        if change.rows and own.events is not None and other.events is not None:
            self._types = other.events.form.names
            wanted |= {_TYPE} if own.events.form.names - self._types else set()
        self.columns = tuple(by_name[name] for name in sorted(wanted))

    @property
    def reads(self) -> tuple[str, ...]:
        """Returns the columns that the decision needs; without any, all rows are admitted."""
        return tuple(column.name for column in self.columns)

    def exclusion(self, row: Mapping[str, Any]) -> str | None:
        """Returns why the other version does not admit a row; None if it does."""
        kind = row.get(_TYPE) if self._types is not None else None
        if self._types is not None and kind is not None and kind not in self._types:
            return f"rows of {kind}, which {self._other.name} does not include"
        unmet = self._inspection.unmet(row, counts=False) if self._inspects else None
        return None if unmet is None else f"rows that {self._other.name} excludes: {unmet.name}"


def _in_tables(config: JobConfig, pair: _Pair) -> VersionDifference:
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
    before = _Passing(tables / old.name, one.version, old, _RowFilter(old, new, pair.change), pair)
    after = _Passing(tables / new.name, other.version, new, _RowFilter(new, old, pair.change), pair)
    of_states = HISTORY_COLUMNS if pair.of_now else ()
    difference = compare_sides(
        before.side(),
        after.side(),
        pair.keys,
        examples_max=EXAMPLES,
        # the time of delivery is no part of a value
        left_out={*pair.retyped, *_OWN, *of_states, *old.times_of_delivery, *new.times_of_delivery},
    )
    since = str(one.applied_through) if pair.still else None
    at = str(other.applied_through)
    return VersionDifference(
        difference, at, Store.TABLE, dict(before.excluded + after.excluded), since
    )


class _Passing:
    """Excludes the rows of a version's table that the other version lacks by definition.

    A table may be read twice, the second time in part; excluded rows are counted the first time.
    """

    def __init__(
        self, path: Path, version: int, own: ViewPlan, row_filter: _RowFilter, pair: _Pair
    ) -> None:
        self.excluded: Counter[str] = Counter()
        self._path, self._version = path, version
        self._row_filter = row_filter
        self._of_now = pair.of_now and own.history is not None
        schema = TableSchema(own.schema.table, row_filter.columns, ())
        self._narrow = replace(own, schema=schema)
        self._to_count = 0

    def side(self) -> ComparedVersion:
        reads = (*self._row_filter.reads, *([_CURRENT] if self._of_now else []))
        if not reads:
            return ComparedVersion(self._path, self._version)
        self._to_count = _rows(self._path, self._version)
        return ComparedVersion(self._path, self._version, self._passed, reads)

    def _passed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        counts, self._to_count = self._to_count > 0, self._to_count - batch.num_rows
        if self._of_now:
            now = batch.filter(batch.column(_CURRENT))
            if counts:
                self.excluded[_EARLIER] += batch.num_rows - now.num_rows
            batch = now
        if not self._row_filter.reads:
            return batch
        rows = decoded_rows(self._narrow, pa.Table.from_batches([batch]))
        out = [self._row_filter.exclusion(row) for row in rows]
        if counts:
            self.excluded.update(each for each in out if each is not None)
        return batch.filter(pc.is_null(pa.array(out, pa.string())))


def _rows(path: Path, version: int) -> int:
    try:
        engine = QueryBuilder().register("rows", DeltaTable(str(path), version=version))
        return int(engine.execute("SELECT count(*) AS n FROM rows").read_all()["n"][0].as_py())
    except (DeltaError, OSError) as error:
        raise SinkUnavailableError(
            "a version of a table cannot be read", detail=f"{path.name}: {type(error).__name__}"
        ) from None


def _in_store(sink: Sink, store: Store, pair: _Pair) -> VersionDifference:
    """Compares the documents of both versions; every store has documents."""
    old, new = pair.old, pair.new
    difference = TableDifference(pair.keys)
    names = tuple(old.schema.by_name), tuple(new.schema.by_name)
    difference.columns_gone = tuple(n for n in names[0] if n not in names[1])
    difference.columns_added = tuple(n for n in names[1] if n not in names[0])
    filters = _RowFilter(old, new, pair.change), _RowFilter(new, old, pair.change)
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


def _let_in(sink: Sink, plan: ViewPlan, row_filter: _RowFilter) -> Iterator[Mapping[str, Any]]:
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


def _move_explained(compared: VersionDifference, pair: _Pair) -> None:
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
