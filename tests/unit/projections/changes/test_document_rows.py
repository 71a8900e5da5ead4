"""A table's rows become the same documents column by column as one by one."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import decode, document, word_of
from projections.definition.views import Store
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.arrow import column_array, decoded_rows, row_part
from projections.verification.source_rows import _MOMENTS, _PRINTED

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
UNHELD = ("infinity", "0044-03-15 10:00:00+00 BC", "20260-01-01 10:00:00+00", "2026-11-21")
USUAL = "2026-11-21T10:00:00.500000Z"
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
    at_once = row_part(PLAN, table, tuple(column.name for column in COLUMNS))
    assert repr(one_by_one) == repr(list(at_once.documents()))


@given(st.lists(st.none() | st.datetimes(), max_size=5), st.sampled_from(sorted(_MOMENTS)))
def test_times_that_postgres_prints_are_read_as_they_are_decoded(
    moments: list[datetime | None], kind: ColumnKind
) -> None:
    end, _ = _MOMENTS[kind]
    printed = [None if each is None else _as_printed(each, end) for each in moments]
    column, word = Column("c", kind, str(kind)), word_of(kind)

    exact = [None if text is None else word(decode(column, text)) for text in printed]
    assert exact == _PRINTED[kind](printed)


@given(st.lists(st.sampled_from([*UNHELD, None, "2026-11-21 10:00:00.5+00"])))
def test_a_time_that_no_store_holds_is_not_taken_for_another(printed: list[str | None]) -> None:
    found = _PRINTED[ColumnKind.TIMESTAMPTZ](printed)

    assert found == [each if each in {*UNHELD, None} else USUAL for each in printed]


def _as_printed(moment: datetime, end: str) -> str:
    """As Postgres does: no zeros at the end of a fraction, no fraction of a whole second."""
    second = moment.isoformat(" ", "seconds")
    fraction = f".{moment.microsecond:06}".rstrip("0").rstrip(".")
    return f"{second}{fraction}{end}"


def test_every_kind_is_there() -> None:
    kept = {ColumnKind.UUID, ColumnKind.JSON, ColumnKind.NESTED}  # as they are
    assert set(ColumnKind) == {column.kind for column in COLUMNS} | kept
