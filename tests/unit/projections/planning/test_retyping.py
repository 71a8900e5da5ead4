"""What a column had under another type is kept where the new type holds it, and never guessed."""

from __future__ import annotations

import base64
import uuid
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind
from cdc.values import UNCHANGED_PLACEHOLDER, decode
from projections.planning.row_upcaster import retyped


def column(kind: ColumnKind, type_name: str = "", *digits: int) -> Column:
    return Column("c", kind, type_name or str(kind), *digits)


INTEGER = column(ColumnKind.INTEGER, "integer")
SMALL = column(ColumnKind.INTEGER, "smallint")
TEXT = column(ColumnKind.TEXT, "text")
MONEY = column(ColumnKind.NUMERIC, "numeric(5,2)", 5, 2)
BYTES = column(ColumnKind.BYTES, "bytea")
BOOLEAN = column(ColumnKind.BOOLEAN, "boolean")
DATE = column(ColumnKind.DATE, "date")
UUID = column(ColumnKind.UUID, "uuid")


@pytest.mark.parametrize(
    ("value", "was", "now", "becomes"),
    [
        ("5", "text", INTEGER, 5),
        (" 5", "text", INTEGER, None),
        ("five", "text", INTEGER, None),
        ("\u0663", "text", INTEGER, None),  # a digit of another script, which Postgres refuses
        ("\u0663", "text", MONEY, None),
        ("five", "text", UUID, None),
        ("a" * 32, "text", UUID, None),
        ("5.0", "numeric", INTEGER, None),
        (40_000, "integer", SMALL, None),
        (-32_768, "integer", SMALL, -32_768),
        (5, "integer", TEXT, "5"),
        (True, "boolean", TEXT, "true"),
        ("false", "text", BOOLEAN, False),
        ("maybe", "text", BOOLEAN, None),
        ("999.99", "text", MONEY, "999.99"),
        ("999.990", "numeric(6,3)", MONEY, "999.990"),
        ("1000", "text", MONEY, None),
        ("0.001", "text", MONEY, None),
        ("0.00", "text", MONEY, "0.00"),
        ("NaN", "numeric", MONEY, None),
        (base64.b64encode(b"ab").decode(), "bytea", TEXT, "\\x6162"),
        ("\\x6162", "text", BYTES, base64.b64encode(b"ab").decode()),
        ("ab", "text", BYTES, None),
        ("2026-02-31", "text", DATE, None),
        (None, "text", INTEGER, None),
        (UNCHANGED_PLACEHOLDER, "text", INTEGER, UNCHANGED_PLACEHOLDER),
    ],
)
def test_a_value_is_kept_where_its_new_type_holds_it(
    value: Any, was: str, now: Column, becomes: Any
) -> None:
    assert retyped(value, was, now) == becomes


@given(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([("smallint", 15), ("integer", 31), ("bigint", 63)]),
)
def test_an_integer_is_held_exactly_or_not_at_all(number: int, kind: tuple[str, int]) -> None:
    name, bits = kind
    found = retyped(str(number), "numeric", column(ColumnKind.INTEGER, name))
    assert found == (number if -(1 << bits) <= number < 1 << bits else None)


@given(
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-5000, max_value=5000)
)
def test_a_numeric_is_held_exactly_or_not_at_all(number: Decimal) -> None:
    found = retyped(str(number), "numeric", MONEY)
    exact = round(number, 2) == number and abs(number) < 1000
    assert (found is None, found is None or Decimal(found) == number) == (not exact, True)


PYTHON = {
    ColumnKind.INTEGER: int,
    ColumnKind.NUMERIC: Decimal,
    ColumnKind.BOOLEAN: bool,
    ColumnKind.BYTES: bytes,
    ColumnKind.DATE: date,
    ColumnKind.UUID: str,
    ColumnKind.TEXT: str,
}


@given(st.text(), st.sampled_from([INTEGER, MONEY, BOOLEAN, BYTES, DATE, UUID, TEXT]))
def test_whatever_comes_of_a_text_can_be_decoded(text: str, now: Column) -> None:
    found = decode(now, retyped(text, "text", now))

    assert found is None or type(found) is PYTHON[now.kind]
    assert found is None or now is not UUID or str(uuid.UUID(str(found))) == found
