"""A history of prices, changes of it, and what its tables have."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from hypothesis import HealthCheck, settings

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.stores.delta.history.arrow import HistoryForm
from projections.stores.delta.history.check import HistoryCheck
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

    from projections.stores.delta.history.states import HistoryState

EPOCH = 1 << 56
PRICES = TableSchema(
    TableName("public", "prices"),
    (
        Column("id", ColumnKind.INTEGER, "integer", nullable=False),
        Column("price", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2),
        Column("note", ColumnKind.TEXT, "text"),
        Column("since", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    ),
    ("id",),
)


def slowly() -> settings:
    """Settings of property tests each of whose examples writes tables."""
    return settings(
        max_examples=examples(20),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def prices(*, by_sequence: bool = False, left_out: str | None = None) -> ViewPlan:
    """A history of prices."""
    kept = HistoryPlan(("price",), "since" if by_sequence else None)
    columns = tuple(column for column in PRICES.columns if column.name != left_out)
    schema = TableSchema(PRICES.table, columns, PRICES.key)
    name = f"prices_{secrets.token_hex(5)}"
    to = frozenset([Store.TABLE])
    return ViewPlan(name, "t", "t.public.prices", schema, ("id",), to, history=kept)


def price(  # noqa: PLR0913  # a change has many parts
    version: int, amount: str, at_s: int, since_s: int = 0, *, note: str | None = None, key: int = 1
) -> RowChange:
    """A price that was committed at some second."""
    since = datetime.fromtimestamp(since_s, UTC)
    row = {"id": key, "price": Decimal(amount), "note": note, "since": since}
    return RowChange((key,), EPOCH | 8 * version, row, at_s * 1_000_000)


def gone(version: int, at_s: int, key: int = 1) -> RowChange:
    """A delete."""
    return RowChange((key,), EPOCH | 8 * version, None, at_s * 1_000_000)


def stored(root: Path, plan: ViewPlan) -> dict[tuple[object, ...], list[HistoryState]]:
    """The states of every key that a table has, in the order of their identity."""
    table = DeltaTable(str(root / plan.name)).to_pyarrow_dataset().to_table()
    found: dict[tuple[object, ...], list[HistoryState]] = {}
    for place, state in HistoryForm(plan).states(table):
        found.setdefault(place, []).append(state)
    assert table.column("is_current").to_pylist() == [
        state.current for _, state in HistoryForm(plan).states(table)
    ]
    return {key: sorted(found[key], key=lambda state: state.identity) for key in sorted(found)}


def unlike(root: Path, plan: ViewPlan) -> dict[int, tuple[str, ...]]:
    """Keys whose states are not what their changes say, and in what they differ."""
    parts = HistoryCheck(root, plan).differing()
    return {row["id"]: columns for part in parts for row, columns in part.values()}
