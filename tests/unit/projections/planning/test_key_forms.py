"""A key in the form of its columns names a row that no other key of this form names."""

from __future__ import annotations

import base64
import re
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import decode
from projections.planning.key_forms import (
    in_form,
    key_in_form,
    key_pattern,
    one_form,
    printed_form,
    rewritten,
)

CENTS = Column("id", ColumnKind.NUMERIC, "numeric(9,2)", 9, 2)
FRACTIONS = st.sampled_from(["", ".5", ".50", ".123456", ".100000"])
DIGITS = st.decimals(-99, 99, places=3).map(lambda value: format(value, "f"))
DAYS = st.dates().map(str)
CLOCKS = st.builds(lambda at, rest: f"{at:%H:%M:%S}{rest}", st.times(), FRACTIONS)
MOMENTS = st.builds(lambda day, sep, at: f"{day}{sep}{at}", DAYS, st.sampled_from("T "), CLOCKS)
TEXTS = {
    Column("id", ColumnKind.DATE, "date"): DAYS | DAYS.map(lambda day: day.replace("-", "")),
    Column("id", ColumnKind.TIME, "time"): CLOCKS,
    Column("id", ColumnKind.TIMESTAMP, "timestamp"): MOMENTS,
    Column("id", ColumnKind.TIMESTAMPTZ, "timestamptz"): st.builds(
        lambda at, zone: at + zone, MOMENTS, st.sampled_from(["Z", "+00", "+00:00", "+02"])
    ),
    Column("id", ColumnKind.BYTES, "bytea"): st.binary(max_size=4).map(
        lambda raw: base64.b64encode(raw).decode()
    )
    | st.text("AQg=", min_size=4, max_size=4),
    CENTS: DIGITS | DIGITS.map(lambda text: text[:-1]) | st.sampled_from(["-0.00", "NaN", "0"]),
    Column("id", ColumnKind.NUMERIC, "numeric(9,0)", 9, 0): DIGITS.map(lambda text: text[:-4]),
    Column("id", ColumnKind.NUMERIC, "numeric(3,-2)", 3, -2): st.integers(-99, 99).map(
        lambda number: str(number * 100)
    ),
}


def decoded(column: Column, text: str) -> Any:
    try:
        return decode(column, text)
    except Exception:  # noqa: BLE001  # no value of the column
        return None


@given(st.data())
def test_two_texts_in_the_form_are_two_values(data: st.DataObject) -> None:
    column = data.draw(st.sampled_from([*TEXTS]))
    texts = data.draw(st.lists(TEXTS[column], min_size=2, unique=True))

    held = [text for text in texts if in_form(column, text)]
    values = [value for text in held if (value := decoded(column, text)) is not None]

    assert one_form(column)
    assert len(values) == len(set(values))


@given(st.data())
def test_a_value_is_rewritten_as_postgres_prints_it(data: st.DataObject) -> None:
    column = data.draw(st.sampled_from([*TEXTS]))
    text = data.draw(TEXTS[column])
    value = decoded(column, text)

    found = rewritten(column, text)

    if value is None or in_form(column, text):
        assert text == found
    else:
        assert value == decode(column, found) or value != value  # noqa: PLR0124
        assert rewritten(column, found) == found


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column("id", ColumnKind.DATE, "date"), "0999-12-31"),
        (Column("id", ColumnKind.TIME, "time"), "23:59:59.9"),
        (Column("id", ColumnKind.TIMESTAMP, "timestamp"), "2026-01-01 00:00:00.000001"),
        (Column("id", ColumnKind.TIMESTAMPTZ, "timestamptz"), "2026-01-01 00:00:00+00"),
        (Column("id", ColumnKind.BYTES, "bytea"), ""),
        (CENTS, "-12.00"),
        (Column("id", ColumnKind.NUMERIC, "numeric(2,4)", 2, 4), "0.0012"),
        (Column("id", ColumnKind.TEXT, "text"), "any\nline"),
        (Column("id", ColumnKind.INTEGER, "bigint"), 2**63 - 1),
    ],
)
def test_what_postgres_prints_is_in_the_form(column: Column, text: object) -> None:
    schema = TableSchema(TableName("public", "t"), (column,), ("id",))

    assert in_form(column, text)
    assert text == rewritten(column, text)
    assert key_in_form(schema, orjson.dumps({"id": text}))


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (Column("id", ColumnKind.DATE, "date"), "infinity"),
        (Column("id", ColumnKind.DATE, "date"), "٢٠٢٦-01-01"),
        (Column("id", ColumnKind.TIME, "time"), "24:00:00"),
        (Column("id", ColumnKind.TIME, "time"), "12:00:00.10"),
        (Column("id", ColumnKind.TIMESTAMPTZ, "timestamptz"), "2026-01-01 00:00:00+02"),
        (CENTS, "-0.00"),
        (CENTS, "1.5"),
        (CENTS, 1),
        (Column("id", ColumnKind.BOOLEAN, "boolean"), 1),
    ],
)
def test_what_may_be_another_text_of_a_value_is_not_in_the_form(
    column: Column, text: object
) -> None:
    assert not in_form(column, text)


def test_kinds_without_one_form_have_none() -> None:
    for column in (
        Column("id", ColumnKind.NUMERIC, "numeric"),
        Column("id", ColumnKind.FLOAT, "double precision"),
        Column("id", ColumnKind.JSON, "jsonb"),
    ):
        assert not one_form(column)
        assert not in_form(column, "1")
    assert "1.50" == rewritten(CENTS, "1.5")
    assert "3.00" == rewritten(CENTS, 3)  # as the key was when its column was an integer
    assert Decimal("1.001") == decode(CENTS, rewritten(CENTS, "1.001"))


@given(st.data())
def test_what_the_pattern_of_keys_matches_is_in_the_form(data: st.DataObject) -> None:
    column = data.draw(st.sampled_from([*TEXTS]))
    schema = TableSchema(TableName("public", "t"), (column,), ("id",))
    key = orjson.dumps({"id": data.draw(TEXTS[column])}).decode()

    matches = pc.match_substring_regex(pa.array([key]), key_pattern(schema))[0].as_py()

    assert matches == key_in_form(schema, key.encode())
    assert matches == bool(re.search(key_pattern(schema), key, re.ASCII))
    assert printed_form(column) is not None
