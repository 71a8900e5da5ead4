"""VersionPair: two versions of a view, with the columns, keys and rows that they share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.table import TableSchema
from projections.definition.columns import HISTORY_COLUMNS
from projections.stores.delta.arrow import decoded_rows
from projections.stores.delta.table_diff import PassedRows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.definition.diff import DefinitionChange
    from projections.definition.views import Store
    from projections.planning.view_plan import ViewPlan

_VALID_FROM, _, _CURRENT, _RECORDED_FROM, _ = HISTORY_COLUMNS
_TYPE: Final = "type"
"""Column of every view of events: the id of a row's event."""

EARLIER: Final = "earlier states, which its definition computes differently"


@dataclass(frozen=True)
class VersionPair:
    """Two versions, with the stores, columns and keys that they share.

    Attributes:
        old: The active version.
        new: The other one.
        change: How the definitions differ.
        still: Whether the active version is paused because its table changed.
    """

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

    def row_filters(self) -> tuple[RowFilter, RowFilter]:
        """Returns the filters of the rows of both versions."""
        old, new = self.old, self.new
        return RowFilter(old, new, self.change), RowFilter(new, old, self.change)

    def shared_rows(self) -> tuple[SharedRows, SharedRows]:
        """Returns the filters of the rows of both versions in their tables."""
        old, new = self.row_filters()
        return SharedRows(self.old, old, self), SharedRows(self.new, new, self)


class RowFilter:
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


class SharedRows:
    """Excludes the rows of a version's table that the other version lacks by definition.

    Attributes:
        reads: Columns that the decision needs; without any, all rows are shared.
    """

    def __init__(self, own: ViewPlan, row_filter: RowFilter, pair: VersionPair) -> None:
        self._row_filter = row_filter
        self._of_now = pair.of_now and own.history is not None
        self.reads = (*row_filter.reads, *([_CURRENT] if self._of_now else []))
        schema = TableSchema(own.schema.table, row_filter.columns, ())
        self._narrow = replace(own, schema=schema)

    def passed(self, batch: pa.RecordBatch) -> PassedRows:
        """Returns the shared rows of a batch, and how many others there are, by reason."""
        excluded: Counter[str] = Counter()
        if self._of_now:
            now = batch.filter(batch.column(_CURRENT))
            excluded[EARLIER] += batch.num_rows - now.num_rows
            batch = now
        if not self._row_filter.reads:
            return PassedRows(batch, excluded)
        rows = decoded_rows(self._narrow, pa.Table.from_batches([batch]))
        out = [self._row_filter.exclusion(row) for row in rows]
        excluded.update(each for each in out if each is not None)
        return PassedRows(batch.filter(pc.is_null(pa.array(out, pa.string()))), excluded)
