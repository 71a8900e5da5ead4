from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.envelope import Operation
from cdc.errors import ValueDecodeError
from cdc.postgres import catalog, session
from cdc.table import TableName
from cdc.values import decoder, document

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_capture import Captured

pytestmark = pytest.mark.integration

TABLE = TableName("public", "typed")
SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy "very"');
CREATE DOMAIN cents AS numeric(12,2);
CREATE DOMAIN price AS cents CHECK (VALUE IS NULL OR VALUE >= 0);
CREATE TABLE typed (
    id int PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8 DEFAULT 5,
    n numeric, n2 numeric(12,2), n0 numeric(30,0), r real, d double precision,
    t text DEFAULT 'filled', v varchar(20), c char(4), m mood, dom price,
    u uuid, j json, jb jsonb, day date, tm time, tm3 time(3),
    ts timestamp, ts3 timestamp(3), tz timestamptz, tz0 timestamptz(0), by bytea,
    texts text[], ints int[], inet inet, g int GENERATED ALWAYS AS (id * 2) STORED
)"""
ROWS = (
    """(1, true, -32768, 2147483647, 9223372036854775807,
        '12345678901234567890.123456789000', 10.50, '123456789012345678901234567890', 0.1,
        0.1234567890123456, E'line\\n"quoted" \\\\ \U0001f600 e\\u0301', 'x', 'ab', 'ok', 3.10,
        '6ecd8c99-4036-403d-bf84-cf8400f67836', '{"b" : 1.0,  "a":[1e400]}', '{"b": 1.0}',
        '2026-02-28', '23:59:59.999999', '12:00:00.120', '2026-01-02 03:04:05.123456',
        '2026-01-02 03:04:05.120', '2026-01-02 03:04:05.123456+02', '2026-01-02 03:04:05+02',
        '\\x0001ff', '{a,"b c",NULL,"",null,"NULL"}', '{1,NULL,-3}', '10.0.0.1/24')""",
    "(2" + ", NULL" * 28 + ")",
    """(3, false, 0, 0, 0, 'NaN', 0, 0, 'NaN', '-Infinity', '', '', '', 'happy "very"', 0,
        '00000000-0000-0000-0000-000000000000', 'null', '[]', '0001-01-01', '00:00', '00:00',
        '0001-01-01 00:00:00', '1969-12-31 23:59:59.999', '9999-12-31 23:59:59.999999+00',
        '1970-01-01 00:00:00+00', '', '{}', '{}', '::1')""",
    """(4, true, 1, 1, 1, '-Infinity', -0.01, -1, '1e-40', '-0', repeat('x', 100), 'y', 'wxyz',
        'sad', 1, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '"s"', '"s"', '9999-12-31',
        '00:00:00.000001', '23:59:59.999', '9999-12-31 23:59:59.999999', '2000-02-29 00:00:00',
        '1582-10-10 00:00:00.000001+00', '1900-01-01 00:00:00+00', '\\xdeadbeef',
        '{"{","}","\\"","\\\\",","}', '{2147483647}', '2001:db8::/32')""",
    "(5, true, 1, 1, 1, 'Infinity', 1, 1, 'Infinity', '4.9e-324'" + ", NULL" * 19 + ")",
)
COLUMNS = (
    "id, b, i2, i4, i8, n, n2, n0, r, d, t, v, c, m, dom, u, j, jb, day, tm, tm3, ts, ts3, tz,"
    " tz0, by, texts, ints, inet"
)
# What travels as its text is compared with the text that Postgres itself prints.
AS_TEXT = ("u", "j", "jb", "m", "texts", "ints", "inet")


def insert(shift: int) -> str:
    rows = ", ".join(row.replace("(", f"({shift} + ", 1) for row in ROWS)
    return f"INSERT INTO typed ({COLUMNS}) VALUES {rows}"  # noqa: S608


def rows_of_source(dsn: str) -> dict[int, dict[str, object]]:
    # a cast prints some types in another way than their own output
    names = [
        f"CASE WHEN {name} IS NOT NULL THEN format('%s', {name}) END" if name in AS_TEXT else name
        for name in COLUMNS.split(", ")
    ]
    with psycopg.connect(dsn) as connection:
        connection.execute("SET timezone = 'UTC'")
        found = connection.execute(f"SELECT {', '.join(names)} FROM typed".encode()).fetchall()  # noqa: S608
    return {row[0]: dict(zip(COLUMNS.split(", "), row, strict=True)) for row in found}


def rows_of(captured: Captured) -> dict[int, tuple[Operation, Any]]:
    with session.connect(captured.database) as connection:
        schema = catalog.describe(connection, [TABLE])[TABLE]
    decode_row = decoder(schema)
    decoded = {}
    for event in captured.events("typed"):
        assert event.after is not None
        row = decode_row(event.after)
        decoded[row["id"]] = (event.operation, row, document(schema, row))
    return decoded  # type: ignore[return-value]


def test_every_type_arrives_as_the_source_has_it_from_snapshot_and_from_stream(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in (*SCHEMA.split(";"), insert(0)):
            connection.execute(statement.encode())
    captured = capture("public.typed")
    captured.execute(insert(10))

    arrived = rows_of(captured)

    expected = {key: row for key, row in rows_of_source(database).items() if key > 0}
    assert {1, 2, 3, 4, 5, 11, 12, 13, 14, 15} == set(arrived)
    for key, row in expected.items():
        operation, decoded, _ = arrived[key]
        assert (key < 10) == (operation is Operation.READ)
        assert list(map(repr, row.values())) == list(map(repr, decoded.values()))
    for key in range(1, 6):
        of_snapshot, of_stream = arrived[key][2], arrived[key + 10][2]
        assert {**of_snapshot, "id": 0} == {**of_stream, "id": 0}


@pytest.mark.parametrize("value", ["infinity", "-infinity", "0044-03-15 BC", "294276-12-31"])
def test_a_time_that_stores_cannot_hold_is_refused_by_name(
    database: str, capture: Callable[..., Captured], value: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE times (id int PRIMARY KEY, at timestamptz, n int)")
    captured = capture("public.times")
    captured.execute(f"INSERT INTO times VALUES (1, '{value}')")  # noqa: S608

    (event,) = captured.events("times")

    with session.connect(database) as connection:
        schema = catalog.describe(connection, [TableName("public", "times")])
    with pytest.raises(ValueDecodeError) as refused:
        decoder(schema[TableName("public", "times")])(event.after or {})
    assert "public.times.at" in refused.value.message
