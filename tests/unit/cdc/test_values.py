from __future__ import annotations

import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.errors import SchemaMismatchError, ValueDecodeError
from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import (
    UNCHANGED,
    UNCHANGED_MARKS,
    UNCHANGED_PLACEHOLDER,
    decode,
    decoder,
    document,
    rows_decoder,
)

TIMES = (ColumnKind.DATE, ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ)
KEPT_APART = (ColumnKind.TEXT, ColumnKind.JSON, ColumnKind.NUMERIC, ColumnKind.BYTES)


def column(kind: ColumnKind) -> Column:
    return Column("c", kind, str(kind))


def encoded(kind: ColumnKind, value: object) -> object:
    schema = TableSchema(TableName("public", "t"), (column(kind),))
    return document(schema, {"c": value})["c"]


def as_postgres(value: datetime | date, suffix: str = "") -> str:
    """Prints a time as Postgres does: a blank before the time of day, no trailing zeros."""
    text = value.isoformat(*([" "] if isinstance(value, datetime) else []))
    return (text.rstrip("0") if "." in text else text) + suffix


@pytest.mark.parametrize(
    ("kind", "raw", "expected"),
    [
        (ColumnKind.BOOLEAN, True, True),
        (ColumnKind.INTEGER, 2**63 - 1, 2**63 - 1),
        (ColumnKind.NUMERIC, "12.50", Decimal("12.50")),
        (ColumnKind.NUMERIC, "-Infinity", Decimal("-Infinity")),
        (ColumnKind.FLOAT, "0.1", 0.1),
        (ColumnKind.FLOAT, "-Infinity", float("-inf")),
        (ColumnKind.TEXT, "", ""),
        (ColumnKind.TEXT, None, None),
        (ColumnKind.TEXT, '[0:1]={a,"b \\"c\\""}', '[0:1]={a,"b \\"c\\""}'),
        (ColumnKind.TEXT, "unchanged", "unchanged"),
        (ColumnKind.DATE, "2026-11-21", date(2026, 11, 21)),
        (ColumnKind.TIME, "23:59:59.999999", time(23, 59, 59, 999999)),
        (ColumnKind.TIMESTAMP, "2026-11-21 08:00:00.000001", datetime(2026, 11, 21, 8, 0, 0, 1)),  # noqa: DTZ001
        (
            ColumnKind.TIMESTAMPTZ,
            "2026-11-21 08:00:00.5+00",
            datetime(2026, 11, 21, 8, 0, 0, 500_000, tzinfo=UTC),
        ),
        (ColumnKind.BYTES, "AAH/", b"\x00\x01\xff"),
        (ColumnKind.BYTES, "", b""),
    ],
)
def test_what_travels_becomes_exact_values(kind: ColumnKind, raw: object, expected: object) -> None:
    decoded = decode(column(kind), raw)

    assert (type(expected), expected) == (type(decoded), decoded)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (ColumnKind.BOOLEAN, 1),
        (ColumnKind.BOOLEAN, "yes"),
        (ColumnKind.INTEGER, 1.0),
        (ColumnKind.INTEGER, True),
        (ColumnKind.INTEGER, "1"),
        (ColumnKind.NUMERIC, 1.5),
        (ColumnKind.NUMERIC, "many"),
        (ColumnKind.FLOAT, 1.5),
        (ColumnKind.TEXT, {"a": 1}),
        (ColumnKind.TEXT, ["a"]),
        (ColumnKind.DATE, 20_000),
        (ColumnKind.TIME, "24:00:00"),
        (ColumnKind.TIME, 0),
        (ColumnKind.TIMESTAMP, "2026-11-21 08:00:00+00"),
        (ColumnKind.TIMESTAMPTZ, "2026-11-21 08:00:00"),
        (ColumnKind.BYTES, "not base64!"),
        (ColumnKind.BYTES, 5),
    ],
)
def test_what_does_not_fit_is_refused_by_name_without_its_value(
    kind: ColumnKind, raw: object
) -> None:
    with pytest.raises(ValueDecodeError) as refused:
        decode(column(kind), raw)

    assert "column c" in refused.value.message
    assert str(raw) not in f"{refused.value.message} {refused.value.detail}"


@given(
    kind=st.sampled_from(TIMES),
    year=st.integers(10_000, 5_874_897),
    rest=st.dates(date(2000, 1, 1), date(2000, 12, 31)),
    era=st.sampled_from(["", " BC"]),
)
def test_years_beyond_pythons_are_refused_never_read_as_others(
    kind: ColumnKind, year: int, rest: date, era: str
) -> None:
    day = f"{year % 10_000 if era else year:04d}-{rest:%m-%d}"
    of_day = {ColumnKind.DATE: "", ColumnKind.TIMESTAMP: " 01:02:03"}.get(kind, " 01:02:03+00")

    for raw in (day + of_day + era, "infinity", "-infinity"):
        with pytest.raises(ValueDecodeError):
            decode(column(kind), raw)


@given(st.dates())
def test_a_date_survives(value: date) -> None:
    assert value == decode(column(ColumnKind.DATE), as_postgres(value))


@given(st.datetimes())
def test_a_local_time_survives_to_the_microsecond(value: datetime) -> None:
    assert value == decode(column(ColumnKind.TIMESTAMP), as_postgres(value))


@given(st.datetimes())
def test_an_instant_survives_to_the_microsecond_and_in_its_document_as_well(
    value: datetime,
) -> None:
    decoded = decode(column(ColumnKind.TIMESTAMPTZ), as_postgres(value, "+00"))

    assert value.replace(tzinfo=UTC) == decoded
    assert decoded == decode(
        column(ColumnKind.TIMESTAMPTZ), encoded(ColumnKind.TIMESTAMPTZ, decoded)
    )


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_a_numeric_keeps_its_scale_and_never_turns_to_an_exponent(value: Decimal) -> None:
    text = format(value, "f")

    assert text == encoded(ColumnKind.NUMERIC, decode(column(ColumnKind.NUMERIC), text))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "9" * 1000 + "." + "9" * 1000])
def test_a_numeric_is_the_text_that_it_was(text: str) -> None:
    assert text == encoded(ColumnKind.NUMERIC, decode(column(ColumnKind.NUMERIC), text))


@given(st.binary())
def test_bytes_survive(value: bytes) -> None:
    assert value == decode(column(ColumnKind.BYTES), encoded(ColumnKind.BYTES, value))


@given(st.floats())
def test_a_float_survives(value: float) -> None:
    assert repr(value) == repr(decode(column(ColumnKind.FLOAT), repr(value)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_float_that_json_lacks_is_a_word_in_documents(value: float) -> None:
    assert repr(value) == repr(float(str(encoded(ColumnKind.FLOAT, value))))


def test_empty_text_and_null_stay_apart() -> None:
    assert ("", None) == (encoded(ColumnKind.TEXT, ""), encoded(ColumnKind.TEXT, None))


@pytest.mark.parametrize("kind", KEPT_APART)
def test_the_mark_of_an_unchanged_value_is_known_in_every_kind_and_found_in_the_bytes(
    kind: ColumnKind,
) -> None:
    record = orjson.dumps({"after": {"c": UNCHANGED_PLACEHOLDER}})

    assert UNCHANGED is decode(column(kind), orjson.loads(record)["after"]["c"])
    assert any(mark in record for mark in UNCHANGED_MARKS)


@given(
    st.text(st.characters(exclude_characters="\0", codec="utf-8"))
    | st.sampled_from([UNCHANGED_PLACEHOLDER[1:], "\\u0000unchanged", '"\\u0000unchanged"'])
)
def test_no_text_of_postgres_is_taken_for_the_mark(text: str) -> None:
    again = orjson.loads(orjson.dumps(text))

    assert text == decode(column(ColumnKind.TEXT), again)


@pytest.mark.parametrize("row", [{}, {"c": 1, "d": 2}, {"d": 1}], ids=["gone", "new", "renamed"])
def test_other_columns_than_planned_are_refused_never_filled(row: dict[str, int]) -> None:
    schema = TableSchema(TableName("public", "t"), (column(ColumnKind.INTEGER),))

    with pytest.raises(SchemaMismatchError):
        decoder(schema)(row)


def test_the_unchanged_mark_is_one_object_in_every_process() -> None:
    assert UNCHANGED is pickle.loads(pickle.dumps(UNCHANGED))  # noqa: S301


WIDE = TableSchema(
    TableName("public", "t"),
    tuple(
        Column(str(kind), kind, str(kind)) for kind in ColumnKind if kind is not ColumnKind.NESTED
    ),
)
FITTING = {
    ColumnKind.BOOLEAN: st.booleans(),
    ColumnKind.INTEGER: st.integers(-(2**63), 2**63 - 1),
    ColumnKind.NUMERIC: st.decimals(places=3).map(str),
    ColumnKind.FLOAT: st.floats().map(repr),
    ColumnKind.TEXT: st.text(max_size=4),
    ColumnKind.UUID: st.uuids().map(str),
    ColumnKind.JSON: st.just('{"a": 1}'),
    ColumnKind.DATE: st.dates().map(str),
    ColumnKind.TIME: st.times().map(str),
    ColumnKind.TIMESTAMP: st.datetimes().map(as_postgres),
    ColumnKind.TIMESTAMPTZ: st.builds(
        as_postgres, st.datetimes(), st.sampled_from(["+00", "+00", "+05:30", ""])
    ),
    ColumnKind.BYTES: st.sampled_from(["", "AAEC", "AAE"]),
}
ODD = st.one_of(
    st.none(),
    st.sampled_from([UNCHANGED_PLACEHOLDER, True, 1, 1.5, "1", "", "infinity", "24:00", [], {}]),
)


@st.composite
def rows_as_they_travel(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows nearly all of which fit, as in life; seldom a value or a column is another."""
    rows = draw(st.lists(st.fixed_dictionaries({str(k): v for k, v in FITTING.items()})))
    for row in draw(st.lists(st.sampled_from(rows), max_size=2)) if rows else []:
        name = draw(st.sampled_from([*row, "new"]))
        if draw(st.booleans()):
            row[name] = draw(ODD)
        else:
            row.pop(name, None)
        if draw(st.booleans()):
            row["other"] = 1
    return rows


def outcome(rows: list[dict[str, Any]], *, together: bool) -> object:
    """What decoding says, every value in its full form: NaN is NaN, and 1 is not True."""
    decode_row, decode_rows = decoder(WIDE), rows_decoder(WIDE)
    try:
        decoded = decode_rows(rows) if together else [decode_row(row) for row in rows]
    except (SchemaMismatchError, ValueDecodeError) as error:
        return type(error), error.message, error.detail
    return repr(decoded)


@given(rows_as_they_travel())
@example([])
def test_rows_decoded_together_say_what_each_says_by_itself(rows: list[dict[str, Any]]) -> None:
    before = repr(rows)

    assert outcome(rows, together=False) == outcome(rows, together=True)
    assert before == repr(rows)
