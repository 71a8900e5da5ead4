"""Rows compared by column are suspect exactly where their documents differ."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.row_change import RowChange
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.views import Store
from projections.planning.view_plan import EventsPlan, HistoryPlan, Nested, ViewPlan
from projections.stores.delta.arrow import row_part, rows_table
from projections.stores.delta.row_hashes import RowHashes
from projections.verification import hashed_batches, source_batches
from projections.verification.column_pass import ComparedBatches
from projections.verification.key_filter import ComparedRows, differing
from projections.verification.source_batches import next_limit, supported
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUES: dict[Column, list[Any]] = {
    Column("id", ColumnKind.INTEGER, "bigint"): [0, -1, -2, 2**62],
    Column("part", ColumnKind.TEXT, "text"): ["", "a", "a:", "\\N", "søster"],
    Column("small", ColumnKind.INTEGER, "smallint"): [None, 0, -1],
    Column("paid", ColumnKind.BOOLEAN, "boolean"): [None, True, False],
    Column("total", ColumnKind.NUMERIC, "numeric(12,2)", precision=12, scale=2): [
        *(None, Decimal("0.00"), Decimal("-1.10"), Decimal("1.10")),
    ],
    Column("digits", ColumnKind.NUMERIC, "numeric"): [
        *(None, Decimal(1), Decimal("1.0"), Decimal("NaN"), Decimal(10) ** 40),
    ],
    Column("rate", ColumnKind.FLOAT, "double precision"): [
        *(None, 0.0, -0.0, 0.1, math.nan, -math.nan, math.inf),
    ],
    Column("doc", ColumnKind.JSON, "json"): [None, '{"a":1}', '{"a": 1}', "null"],
    Column("day", ColumnKind.DATE, "date"): [None, date(1, 1, 1), date(1970, 1, 1)],
    Column("at_time", ColumnKind.TIME, "time"): [None, time(0), time(0, 0, 0, 1)],
    Column("noted_at", ColumnKind.TIMESTAMP, "timestamp"): [
        *(None, datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1)),  # noqa: DTZ001
    ],
    Column("placed_at", ColumnKind.TIMESTAMPTZ, "timestamptz"): [
        *(None, datetime(9999, 12, 31, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
    ],
    Column("data", ColumnKind.BYTES, "bytea"): [None, b"", b"\x00", b"\x00\xff"],
}
KEYS = (("id",), ("part", "id"), ("rate", "total"), ("digits",), ("data", "placed_at", "paid"))
ROW = st.tuples(*(st.sampled_from(values) for values in VALUES.values()))
ABSENT = ("small",)


def plan_of(keys: tuple[str, ...], absent: Sequence[str] = ()) -> ViewPlan:
    schema = TableSchema(TableName("public", "things"), tuple(VALUES), keys)
    to = frozenset({Store.TABLE})
    return ViewPlan("v", "t", "t.public.things", schema, keys, to, absent=frozenset(absent))


def table_of(plan: ViewPlan, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    names = [column.name for column in plan.schema.columns]
    changes = [RowChange((), 1, dict(zip(names, row, strict=True)), 1) for row in rows]
    return rows_table(plan, changes).select([name for name in names if name not in plan.absent])


def as_documents(plan: ViewPlan, sides: Sequence[pa.Table]) -> list[str]:
    with closing(ComparedRows(plan.keys)) as one, closing(ComparedRows(plan.keys)) as other:
        for side, table in zip((one, other), sides, strict=True):
            side.add(row_part(plan, table, tuple(table.column_names)))
        return [key for keys in differing(one, other) for key in keys]


def by_column(plan: ViewPlan, sides: Sequence[pa.Table]) -> list[str]:
    hashes = RowHashes(signed_zeros=True)
    one, other = (ComparedBatches(plan, hashes) for _ in range(2))
    with closing(one), closing(other):
        for side, table in zip((one, other), sides, strict=True):
            for batch in table.to_batches(max_chunksize=3):
                assert side.suits(batch)
                side.add(batch)
        assert [table.num_rows for table in sides] == [one.rows, other.rows]
        return [key for keys in differing(one, other) for key in keys]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(ROW, max_size=8),
    st.lists(ROW, max_size=4),
    st.lists(ROW, max_size=4),
    st.sampled_from(KEYS),
    st.sampled_from([(), ABSENT]),
)
def test_rows_are_suspect_where_their_documents_differ(
    shared: list[Any], source: list[Any], store: list[Any], keys: tuple[str, ...], absent: Any
) -> None:
    plan = plan_of(keys, absent)
    sides = table_of(plan, shared + source), table_of(plan, shared[::-1] + store)

    assert sorted(as_documents(plan, sides)) == sorted(by_column(plan, sides))


@pytest.mark.parametrize("place", range(len(VALUES)))
def test_every_pair_of_values_of_a_column_is_told_apart(place: int) -> None:
    plan = plan_of(("id",))
    column, values = list(VALUES.items())[place]
    for one in values:
        for other in values:
            rows = [[each[0] for each in VALUES.values()] for _ in range(2)]
            rows[0][place], rows[1][place] = one, other
            sides = [table_of(plan, [tuple(row)]) for row in rows]

            assert sorted(as_documents(plan, sides)) == sorted(by_column(plan, sides)), column.name


def test_rows_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashed_batches, "_KEPT_ROWS", 100)
    plan = plan_of(("part", "id"))
    base = [values[-1] for values in VALUES.values()][2:]
    rows = [(number, f"p{number % 3}", *base) for number in range(2000)]
    other = [*rows[1:1000], (5000, "p", *base), *rows[1000:], rows[7]]

    found = by_column(plan, (table_of(plan, rows), table_of(plan, other)))

    assert ["p0:0", "p1:7", "p:5000"] == sorted(found)


def test_rows_of_other_types_do_not_suit() -> None:
    plan = plan_of(("id",))
    batch = table_of(plan, [tuple(values[0] for values in VALUES.values())]).to_batches()[0]
    wider = pa.Table.from_batches([batch])
    wider = wider.set_column(2, "small", wider.column("small").cast(pa.int32()))
    with closing(ComparedBatches(plan, RowHashes(signed_zeros=True))) as side:
        assert side.suits(batch)
        assert not side.suits(wider.to_batches()[0])


def test_statements_stay_short_in_rows_in_bytes_and_in_time() -> None:
    assert 10_000 == next_limit(5000, 500_000, 0.01)
    assert source_batches.RANGE_ROWS_MAX == next_limit(40_000, 4_000_000, 0.1)
    assert 5000 == next_limit(10_000, 2 * source_batches.RANGE_BYTES, 0.1)
    assert 2500 == next_limit(10_000, 1000, 4 * source_batches.RANGE_S)
    assert source_batches.RANGE_ROWS_MIN == next_limit(1000, 1 << 30, 9.0)


def test_a_batch_without_rows_adds_none() -> None:
    plan = plan_of(("total", "id"))
    sides = table_of(plan, []), table_of(plan, [tuple(values[1] for values in VALUES.values())])
    hashes = RowHashes(signed_zeros=True)
    one, other = (ComparedBatches(plan, hashes) for _ in range(2))
    with closing(one), closing(other):
        for side in (one, other):
            side.add(sides[1].to_batches()[0].slice(1))
        one.add(sides[1].to_batches()[0])

        assert [["0.00:-1"]] == [keys for keys in differing(one, other) if keys]
        assert [1, 0] == [one.rows, other.rows]


def test_only_mirrors_with_a_key_are_compared_by_column() -> None:
    plan, events, nested = plan_of(("id",)), EventsPlan(cast("Any", None), {}), Nested(many=True)
    connection: Any = SimpleNamespace(info=SimpleNamespace(encoding="utf-8"))
    other: Any = SimpleNamespace(info=SimpleNamespace(encoding="iso8859-1"))
    others = (
        replace(plan, events=events),
        replace(plan, history=HistoryPlan(("part",))),
        replace(plan, keys=(ROW_ID_COLUMN,)),
        replace(plan, nested={"doc": nested}),
    )

    assert supported(connection, plan)
    assert not supported(other, plan)
    assert [False] * 4 == [supported(connection, each) for each in others]
