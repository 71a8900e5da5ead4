"""Converts a history to and from Arrow: its states, and all changes that they follow from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from projections.changes.row_change import RowChange
from projections.definition.columns import VERSION_COLUMN
from projections.stores.delta import key_equality
from projections.stores.delta.arrow import arrow_type, column_array, decoded_rows, keys_table
from projections.stores.delta.history.states import HistoryChange, HistoryState, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from projections.planning.view_plan import ViewPlan

TableKey = tuple[object, ...]
"""A row's key in the form of the tables."""
"""A key as a table stores it."""

CURRENT: Final = "is_current"
COMMIT: Final = "_commit"
"""Column of the changes: number of the commit that added them."""

GONE: Final = "_headwater_gone"
LIVE: Final = "_live"
INSERTED: Final = "_inserted"
"""Column of the changes: see `HistoryChange.inserted`; NULL in rows from before it existed."""

IDENTITY: Final = (VERSION_COLUMN, "_recorded_version")

_ALIGNMENT: Final = 8  # see `change.read`
_TIME: Final = pa.timestamp("us", "UTC")
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class HistoryForm:
    """Converts states and changes of one history."""

    def __init__(self, plan: ViewPlan) -> None:
        assert plan.history is not None  # noqa: S101  # whoever has a form has a history
        self.plan = plan
        self.sequence_by = plan.history.sequence_by
        self.rule = Rule(plan.history.tracked, self.sequence_by is not None)
        by_name = plan.schema.by_name
        self._key_columns = [by_name[name] for name in plan.keys]
        columns = [pa.field(c.name, arrow_type(c)) for c in plan.schema.columns]
        self.states_schema = pa.schema(
            [
                *columns,
                pa.field("valid_from", _TIME, nullable=False),
                pa.field("valid_to", _TIME),
                pa.field(CURRENT, pa.bool_()),
                pa.field("recorded_from", _TIME, nullable=False),
                pa.field("recorded_to", _TIME),
                pa.field(VERSION_COLUMN, pa.int64(), nullable=False),
                pa.field("_recorded_version", pa.int64(), nullable=False),
                pa.field("_last_version", pa.int64(), nullable=False),
                pa.field("_last_at", _TIME, nullable=False),
            ]
        )
        self.changes_schema = pa.schema(
            [
                *columns,
                pa.field(VERSION_COLUMN, pa.int64(), nullable=False),
                pa.field("_at", _TIME, nullable=False),
                pa.field("_sequence", _TIME),
                pa.field(LIVE, pa.bool_(), nullable=False),
                pa.field(COMMIT, pa.int64(), nullable=False),
                pa.field(INSERTED, pa.bool_()),
            ]
        )

    def table_keys(self, keys: Iterable[TableKey]) -> list[TableKey]:
        """Converts keys to the form of the tables.

        Raises:
            UnholdableValueError: One has no exact form.
        """
        changes = [RowChange(key, 0, None, 0) for key in keys]
        return self.keys_in(keys_table(self.plan, changes))

    def keys_in(self, table: pa.Table) -> list[TableKey]:
        """Returns the keys of a table's rows."""
        return key_equality.values(table, self.plan.keys)

    def among(self, table: pa.Table | pa.RecordBatch, keys: pa.Array) -> pa.Array:
        """Marks rows that may have one of some keys: a superset if a key has several columns."""
        return key_equality.among(table.column(self.plan.keys[0]), keys)

    def first_column(self, keys: Iterable[TableKey]) -> pa.Array:
        """Returns the values that `among` compares."""
        return pa.array([key[0] for key in keys], arrow_type(self._key_columns[0]))

    def states_table(self, states: Sequence[tuple[TableKey, HistoryState]]) -> pa.Table:
        """Converts states to rows."""
        values = [state for _, state in states]
        arrays = self._columns([state.row for state in values], [key for key, _ in states])
        arrays += [
            _times([state.valid_from_us for state in values]),
            _times([state.valid_to_us for state in values]),
            pa.array([state.current for state in values], pa.bool_()),
            _times([state.recorded_from_us for state in values]),
            _times([state.recorded_to_us for state in values]),
            pa.array([state.version for state in values], pa.int64()),
            pa.array([state.recorded_version for state in values], pa.int64()),
            pa.array([state.last_version for state in values], pa.int64()),
            _times([state.last_at_us for state in values]),
        ]
        return pa.Table.from_arrays(arrays, schema=self.states_schema)

    def gone_table(self, states: Sequence[tuple[TableKey, tuple[int, int]]]) -> pa.Table:
        """Returns the keys and identities of removed states."""
        arrays = [
            pa.array([key[n] for key, _ in states], arrow_type(column))
            for n, column in enumerate(self._key_columns)
        ]
        arrays += [
            pa.array([identity[n] for _, identity in states], pa.int64())
            for n in range(len(IDENTITY))
        ]
        return pa.Table.from_arrays(arrays, names=[*self.plan.keys, *IDENTITY])

    def states(self, table: pa.Table) -> list[tuple[TableKey, HistoryState]]:
        """Converts rows to states."""
        columns = [
            decoded_rows(self.plan, table),
            _microseconds(table, "valid_from"),
            _microseconds(table, "recorded_from"),
            *(table.column(name).to_pylist() for name in (*IDENTITY, "_last_version")),
            _microseconds(table, "_last_at"),
            _microseconds(table, "valid_to"),
            _microseconds(table, "recorded_to"),
        ]
        states = [HistoryState(*values) for values in zip(*columns, strict=True)]
        return list(zip(self.keys_in(table), states, strict=True))

    def changes_table(
        self, changes: Sequence[tuple[TableKey, HistoryChange]], commit: int
    ) -> pa.Table:
        """Converts changes to rows; a delete has only its key.

        Raises:
            UnholdableValueError: A value has no exact form.
        """
        values = [change for _, change in changes]
        arrays = self._columns([change.row for change in values], [key for key, _ in changes])
        arrays += [
            pa.array([change.version for change in values], pa.int64()),
            _times([change.at_us for change in values]),
            _times([change.sequence_us for change in values]),
            pa.array([change.row is not None for change in values], pa.bool_()),
            pa.repeat(pa.scalar(commit, pa.int64()), len(values)),
            pa.array([change.inserted for change in values], pa.bool_()),
        ]
        return pa.Table.from_arrays(arrays, schema=self.changes_schema)

    def changes(self, table: pa.Table) -> list[tuple[TableKey, HistoryChange]]:
        """Converts rows to changes."""
        live = table.column(LIVE)
        rows = [
            row if there else None
            for row, there in zip(decoded_rows(self.plan, table), live.to_pylist(), strict=True)
        ]
        columns = [
            table.column(VERSION_COLUMN).to_pylist(),
            _microseconds(table, "_at"),
            rows,
            _microseconds(table, "_sequence"),
            reported(table).to_pylist(),
        ]
        changes = [HistoryChange(*values) for values in zip(*columns, strict=True)]
        return list(zip(self.keys_in(table), changes, strict=True))

    def _columns(
        self, rows: Sequence[Mapping[str, object] | None], keys: Sequence[TableKey]
    ) -> list[pa.Array]:
        numbers = {name: number for number, name in enumerate(self.plan.keys)}
        arrays = []
        for column in self.plan.schema.columns:
            name, number = column.name, numbers.get(column.name)
            if number is None:
                values = [None if row is None else row[name] for row in rows]
                arrays.append(column_array(self.plan, column, values))
            else:
                arrays.append(pa.array([key[number] for key in keys], arrow_type(column)))
        return arrays


def reported(table: pa.Table) -> pa.ChunkedArray:
    """Reads for each change whether the log reported an insert, or an earlier row."""
    logged = pc.equal(pc.bit_wise_and(table.column(VERSION_COLUMN), _ALIGNMENT - 1), 0)
    deleted = pc.and_(logged, pc.invert(table.column(LIVE)))
    unknown = pa.nulls(len(table), pa.bool_())  # older tables lack the column
    inserted = table.column(INSERTED) if INSERTED in table.column_names else unknown
    return pc.if_else(deleted, pa.scalar(False), inserted)


def microseconds(time: datetime) -> int:
    """Returns a time in microseconds since 1970; a time without a zone is in UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _BEGINNING) // _MICROSECOND


def _times(values: list[int] | list[int | None]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(_TIME)


def _microseconds(table: pa.Table, name: str) -> list[int]:
    values: list[int] = table.column(name).cast(pa.int64()).to_pylist()
    return values
