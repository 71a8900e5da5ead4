"""A table's rows become the same documents column by column as one by one."""

from __future__ import annotations

from datetime import UTC
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import decode, document, word_of
from projections.plan import ViewPlan
from projections.sinks.arrow import column_array, decoded_rows, document_rows
from projections.source_rows import _PRINTED
from projections.view import Store

COLUMNS = (
    Column("boolean", ColumnKind.BOOLEAN, "boolean"),
    Column("integer", ColumnKind.INTEGER, "bigint"),
    Column("money", ColumnKind.NUMERIC, "numeric(20,9)", 20, 9),
    Column("number", ColumnKind.NUMERIC, "numeric"),
    Column("float", ColumnKind.FLOAT, "double precision"),
    Column("text", ColumnKind.TEXT, "text"),
    Column("day", ColumnKind.DATE, "date"),
    Column("hour", ColumnKind.TIME, "time"),
    Column("local", ColumnKind.TIMESTAMP, "timestamp"),
    Column("moment", ColumnKind.TIMESTAMPTZ, "timestamptz"),
    Column("bytes", ColumnKind.BYTES, "bytea"),
)
PLAN = ViewPlan(
    "v", "s", "s.t", TableSchema(TableName("public", "t"), COLUMNS, ("integer",)), ("integer",),
    frozenset({Store.TABLE}),
)  # fmt: skip
money = st.integers(-(10**19), 10**19).map(lambda units: Decimal(units).scaleb(-9))
rows = st.fixed_dictionaries(
    {
        "boolean": st.none() | st.booleans(),
        "integer": st.integers(-(1 << 63), (1 << 63) - 1),
        "money": st.none() | money | st.just(Decimal("0E-9")) | st.just(Decimal("0.000000001")),
        "number": st.none() | st.decimals(allow_infinity=False) | st.just(Decimal("1E-20")),
        "float": st.none() | st.floats(),
        "text": st.none() | st.text(),
        "day": st.none() | st.dates(),
        "hour": st.none() | st.times(),
        "local": st.none() | st.datetimes(),
        "moment": st.none() | st.datetimes(timezones=st.just(UTC)),
        "bytes": st.none() | st.binary(),
    }
)


@given(st.lists(rows, max_size=5))
def test_rows_are_the_same_documents_at_once_as_one_by_one(
    given_rows: list[dict[str, Any]],
) -> None:
    arrays = {
        column.name: column_array(PLAN, column, [row[column.name] for row in given_rows])
        for column in COLUMNS
    }
    table = pa.table(arrays)
    one_by_one = [document(PLAN.schema, row) for row in decoded_rows(PLAN, table)]
    assert repr(one_by_one) == repr(document_rows(PLAN, table))


@pytest.mark.parametrize(
    ("kind", "printed"),
    [
        *(
            (ColumnKind.TIMESTAMPTZ, f"2026-11-21 10:00:00{part}+00")
            for part in ("", ".5", ".000001")
        ),
        *((ColumnKind.TIMESTAMP, f"0001-01-01 23:59:59{part}") for part in ("", ".12", ".123456")),
    ],
)
def test_a_time_that_postgres_prints_is_read_as_it_is_decoded(
    kind: ColumnKind, printed: str
) -> None:
    exact = decode(Column("c", kind, str(kind)), printed)
    assert word_of(kind)(exact) == _PRINTED[kind](printed)


@pytest.mark.parametrize(
    "printed", ["infinity", "0044-03-15 10:00:00+00 BC", "20260-01-01 10:00:00+00", "2026-11-21"]
)
def test_a_time_that_no_store_holds_is_not_taken_for_another(printed: str) -> None:
    with pytest.raises(Exception, match="does not fit"):
        _PRINTED[ColumnKind.TIMESTAMPTZ](printed)


def test_every_kind_is_there() -> None:
    kept = {ColumnKind.UUID, ColumnKind.JSON, ColumnKind.NESTED}  # as they are
    assert set(ColumnKind) == {column.kind for column in COLUMNS} | kept
