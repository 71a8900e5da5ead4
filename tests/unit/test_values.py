from __future__ import annotations

import pickle
from base64 import b64encode
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import SchemaMismatchError, ValueDecodeError
from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import UNCHANGED, UNCHANGED_PLACEHOLDER, decode, decoder, document


def column(kind: ColumnKind) -> Column:
    return Column("c", kind, str(kind))


def encoded(kind: ColumnKind, value: object) -> object:
    schema = TableSchema(TableName("public", "t"), (column(kind),))
    return document(schema, {"c": value})["c"]


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (ColumnKind.BOOLEAN, True, True),
        (ColumnKind.INTEGER, 2**63 - 1, 2**63 - 1),
        (ColumnKind.NUMERIC, "12.50", Decimal("12.50")),
        (ColumnKind.NUMERIC, "NEGATIVE_INFINITY", Decimal("-Infinity")),
        (ColumnKind.FLOAT, 0.1, 0.1),
        (ColumnKind.FLOAT, "-Infinity", float("-inf")),
        (ColumnKind.TEXT, "", ""),
        (ColumnKind.TEXT, None, None),
        (ColumnKind.TEXT, ["a", 'b "c"', None, "", "null"], '{a,"b \\"c\\"",NULL,"","null"}'),
        (ColumnKind.TEXT, [1, 2], "{1,2}"),
        (ColumnKind.TEXT, [True, False], "{t,f}"),
        (ColumnKind.DATE, "2026-11-21Z", date(2026, 11, 21)),
        (ColumnKind.TIME, "23:59:59.999999Z", time(23, 59, 59, 999999)),
        (ColumnKind.TIMESTAMP, "2026-11-21T08:00:00.000001Z", datetime(2026, 11, 21, 8, 0, 0, 1)),  # noqa: DTZ001
        (
            ColumnKind.TIMESTAMPTZ,
            "2026-11-21T08:00:00.5Z",
            datetime(2026, 11, 21, 8, 0, 0, 500_000, tzinfo=UTC),
        ),
        (ColumnKind.BYTES, "AAH/", b"\x00\x01\xff"),
        (ColumnKind.TEXT, UNCHANGED_PLACEHOLDER, UNCHANGED),
        (ColumnKind.TEXT, [UNCHANGED_PLACEHOLDER], UNCHANGED),
        (ColumnKind.TEXT, list(UNCHANGED_PLACEHOLDER.encode()), UNCHANGED),
        (ColumnKind.TEXT, ["a29aaa89-bd3d-3afb-8c63-697d7bfe1994"], UNCHANGED),  # uuid[]
        (ColumnKind.TEXT, b64encode(UNCHANGED_PLACEHOLDER.encode()).decode(), UNCHANGED),
        (ColumnKind.NUMERIC, UNCHANGED_PLACEHOLDER, UNCHANGED),
        (ColumnKind.BYTES, b64encode(UNCHANGED_PLACEHOLDER.encode()).decode(), UNCHANGED),
    ],
)
def test_debezium_forms_become_exact_values(
    kind: ColumnKind, raw: object, expected: object
) -> None:
    decoded = decode(column(kind), raw)

    assert (type(expected), expected) == (type(decoded), decoded)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (ColumnKind.BOOLEAN, 1),
        (ColumnKind.INTEGER, 1.0),
        (ColumnKind.INTEGER, True),
        (ColumnKind.INTEGER, "1"),
        (ColumnKind.NUMERIC, 1.5),
        (ColumnKind.NUMERIC, "many"),
        (ColumnKind.TEXT, {"a": 1}),
        (ColumnKind.DATE, "-0044-03-15Z"),
        (ColumnKind.TIMESTAMPTZ, "+292278994-08-16T23:00:00Z"),
        (ColumnKind.TIMESTAMPTZ, "2026-11-21T08:00:00"),
        (ColumnKind.TIMESTAMP, "+10000-01-01T00:00:00Z"),
        (ColumnKind.BYTES, "not base64!"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_without_its_value(
    kind: ColumnKind, raw: object
) -> None:
    with pytest.raises(ValueDecodeError) as refused:
        decode(column(kind), raw)

    assert "column c" in refused.value.message
    assert str(raw) not in f"{refused.value.message} {refused.value.detail}"


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_a_numeric_keeps_its_scale_and_never_turns_to_an_exponent(value: Decimal) -> None:
    text = format(value, "f")

    assert text == encoded(ColumnKind.NUMERIC, decode(column(ColumnKind.NUMERIC), text))


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_survives_to_the_microsecond(value: datetime) -> None:
    text = encoded(ColumnKind.TIMESTAMPTZ, value)

    assert value == decode(column(ColumnKind.TIMESTAMPTZ), text)


@given(st.binary())
def test_bytes_survive(value: bytes) -> None:
    assert value == decode(column(ColumnKind.BYTES), encoded(ColumnKind.BYTES, value))


@given(st.floats())
def test_a_float_survives_or_becomes_its_word(value: float) -> None:
    again = decode(column(ColumnKind.FLOAT), encoded(ColumnKind.FLOAT, value))

    assert repr(value) == repr(again)


def test_a_numeric_that_is_no_number_keeps_its_name() -> None:
    assert "NaN" == encoded(ColumnKind.NUMERIC, decode(column(ColumnKind.NUMERIC), "NAN"))


def test_empty_text_and_null_stay_apart() -> None:
    assert ("", None) == (encoded(ColumnKind.TEXT, ""), encoded(ColumnKind.TEXT, None))


@pytest.mark.parametrize("row", [{}, {"c": 1, "d": 2}, {"d": 1}], ids=["gone", "new", "renamed"])
def test_other_columns_than_planned_are_refused_never_filled(row: dict[str, int]) -> None:
    schema = TableSchema(TableName("public", "t"), (column(ColumnKind.INTEGER),))

    with pytest.raises(SchemaMismatchError):
        decoder(schema)(row)


def test_the_unchanged_mark_is_one_object_in_every_process() -> None:
    assert UNCHANGED is pickle.loads(pickle.dumps(UNCHANGED))  # noqa: S301
