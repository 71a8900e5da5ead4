from __future__ import annotations

import hashlib
import random
import struct
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest

from cdc import source
from cdc.errors import ValueDecodeError
from cdc.postgres import catalog, session
from cdc.snapshot import expression
from cdc.table import ColumnKind, TableName
from cdc.values import UNCHANGED, decoder, document
from tests.fix_types import HELD, REFUSED, WITHOUT_SAMPLES, insert_all, make_table, make_types, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.table import TableSchema
    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

LATER = 1000
"""Rows of this id and above were inserted when capture ran; the rest was there before."""

# Types to values that are too large for a row and are stored apart.
LARGE = {
    "text": "repeat('x', 5000)",
    "varchar(9000)": "repeat('y', 5000)",
    "char(4000)": "'z'",
    "json": "to_json(repeat('x', 5000))",
    "jsonb": "to_jsonb(repeat('x', 5000))",
    "bytea": "decode(repeat('ab', 5000), 'hex')",
    "numeric": "repeat('7', 9000)::numeric",
    "varbit": "repeat('10', 20000)::varbit",
    "place": "ROW(repeat('p', 5000), NULL, NULL)",
    "prices": "array_fill(1.5::price, ARRAY[5000])",
    "picture": "decode(repeat('ab', 5000), 'hex')",
    "polygon": "(SELECT format('(%s)', string_agg(format('(%s,1.5)', i), ','))::polygon"
    " FROM generate_series(1, 500) i)",
    "path": "(SELECT format('[%s]', string_agg(format('(%s,1.5)', i), ','))::path"
    " FROM generate_series(1, 500) i)",
    "tsvector": "(SELECT string_agg('w' || i, ' ')::tsvector FROM generate_series(1, 1500) i)",
    "int4multirange": "(SELECT format('{%s}', string_agg(format('[%s,%s)', 9 * i, 9 * i + 2), ','))"
    "::int4multirange FROM generate_series(1, 1000) i)",
    "numrange": "numrange(0, repeat('7', 9000)::numeric)",
    "vector(2000)": "array_fill(0.5::real, ARRAY[2000])::vector",
    "halfvec(3000)": "array_fill(0.5::real, ARRAY[3000])::halfvec",
    **{
        f"{kind}[]": f"array_fill('{value}'::{kind}, ARRAY[5000])"
        for kind, value in {
            "int2": "1",
            "int4": "1",
            "int8": "1",
            "numeric": "1.5",
            "float8": "0.1",
            "bool": "t",
            "date": "2026-01-01",
            "timestamptz": "2026-01-01",
            "interval": "infinity",
            "mood": "ok",
            "text": "x",
            "bytea": "x",
            "jsonb": "{}",
            "uuid": "6ecd8c99-4036-403d-bf84-cf8400f67836",
        }.items()
    },
}


def described(dsn: str, table: str) -> TableSchema:
    name = TableName("public", table)
    with session.connect(dsn) as connection:
        return catalog.describe(connection, [name])[name]


def rows_of(captured: Captured, table: str) -> dict[int, dict[str, Any]]:
    """The row of every key as it travels."""
    found = {}
    for record in captured.records(table):
        after = orjson.loads(record.value)["after"] if record.value else None
        if after is not None:
            found[after["id"]] = after
    return found


def printed(connection: psycopg.Connection[Any], schema: TableSchema) -> dict[int, dict[str, Any]]:
    """Every row as Postgres prints it, in the form in which it travels."""
    connection.execute(expression.SESSION)
    parts = []
    for column in schema.columns:
        if column.kind is ColumnKind.BYTES:
            parts.append(f"translate(encode({column.name}, 'base64'), E'\\n', '')")
        elif column.kind in (ColumnKind.BOOLEAN, ColumnKind.INTEGER):
            parts.append(column.name)
        else:
            shown = f"format('%s', {column.name})"
            parts.append(f"CASE WHEN num_nulls({column.name}) = 0 THEN {shown} END")
    rows = run(connection, f"SELECT {', '.join(parts)} FROM {schema.table.name}")  # noqa: S608
    names = [column.name for column in schema.columns]
    return {row[0]: dict(zip(names, row, strict=True)) for row in rows}


def differences(wanted: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Columns in which two rows differ, NaN being equal to itself; keys are left aside."""
    names = wanted.keys() | found.keys()
    return {
        name: (wanted.get(name), found.get(name))
        for name in names - {"id"}
        if repr(wanted.get(name)) != repr(found.get(name))
    }


def test_every_type_of_postgres_is_among_the_samples(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make_types(connection)
        make_table(connection, "typed", HELD)
        missing = connection.execute(
            "SELECT typname::text FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace"
            " WHERE nspname = 'pg_catalog' AND typtype IN ('b', 'r', 'm') AND typcategory <> 'A'"
            " AND t.oid NOT IN (SELECT atttypid FROM pg_attribute"
            "                    WHERE attrelid = 'typed'::regclass)"
        ).fetchall()

    assert WITHOUT_SAMPLES == {name for (name,) in missing}


def test_every_value_arrives_as_postgres_prints_it_read_and_streamed_alike(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        make_types(connection)
        make_table(connection, "held", HELD)
        make_table(connection, "far", REFUSED)
        held, far = (
            insert_all(connection, name, columns, 0)
            for name, columns in (("held", HELD), ("far", REFUSED))
        )
        captured = capture("public.held", "public.far")
        connection.execute("SET timezone = 'Asia/Kathmandu'")  # none of the source's business
        insert_all(connection, "held", HELD, LATER)
        insert_all(connection, "far", REFUSED, LATER)
        wanted = {name: printed(connection, described(database, name)) for name in ("held", "far")}

    arrived = {name: rows_of(captured, name) for name in ("held", "far")}

    for name, count in (("held", held), ("far", far)):
        rows = arrived[name]
        assert {*range(count), *range(LATER, LATER + count)} == rows.keys()
        for number in range(count):
            assert {} == differences(wanted[name][number], rows[number])
            assert {} == differences(rows[number], rows[number + LATER])
    assert_decoded(database, arrived["held"])
    assert_refused(database, arrived["far"], far - 1)


def assert_decoded(dsn: str, rows: dict[int, dict[str, Any]]) -> None:
    """What arrived is what psycopg reads, and a document says it without a loss."""
    schema = described(dsn, "held")
    decode_row = decoder(schema)
    own = [
        column.name
        for column in schema.columns
        if column.kind not in (ColumnKind.TEXT, ColumnKind.JSON, ColumnKind.UUID)
    ]
    with psycopg.connect(dsn) as connection:
        connection.execute("SET timezone = 'UTC'")
        found = run(connection, f"SELECT {', '.join(own)} FROM held WHERE id >= 0").fetchall()  # noqa: S608
    for values in found:
        wanted = dict(zip(own, values, strict=True))
        row = decode_row(rows[wanted["id"]])
        assert {} == differences(wanted, {name: row[name] for name in own})
        shown = document(schema, row)
        assert {} == differences(shown, orjson.loads(orjson.dumps(shown)))


def assert_refused(dsn: str, rows: dict[int, dict[str, Any]], count: int) -> None:
    """Each value that no store holds is refused, by the names of its table and column."""
    schema = described(dsn, "far")
    decode_row = decoder(schema)
    nothing = dict.fromkeys(schema.by_name)
    refused = 0
    for number in range(count):
        for name, value in rows[number].items():
            if name != "id" and value is not None:
                with pytest.raises(ValueDecodeError, match=f"public.far.{name}$"):
                    decode_row({**nothing, "id": 1, name: value})
                refused += 1
    assert sum(len(column.values) for column in REFUSED) == refused


def test_a_large_value_of_any_type_that_an_update_leaves_alone_is_known_as_unchanged(
    database: str, capture: Callable[..., Captured]
) -> None:
    names = {f"c{number}": kind for number, kind in enumerate(LARGE)}
    with psycopg.connect(database, autocommit=True) as connection:
        make_types(connection)
        run(
            connection,
            "CREATE TABLE large (id int PRIMARY KEY, n int, "
            + ", ".join(f"{name} {kind} STORAGE external" for name, kind in names.items())
            + ")",
        )
        run(connection, f"INSERT INTO large VALUES (1, 1, {', '.join(LARGE.values())})")  # noqa: S608
    captured = capture("public.large")
    captured.execute(
        "UPDATE large SET n = 2",
        # a user's own values that look like the mark
        "UPDATE large SET c0 = 'unchanged', c5 = convert_to('unchanged', 'UTF8') || '\\x00'",
    )

    _, left_alone, changed = captured.events("large")

    decode_row = decoder(described(database, "large"))
    row = decode_row(left_alone.after or {})
    assert {"id": 1, "n": 2} | dict.fromkeys(names, UNCHANGED) == row
    row = decode_row(changed.after or {})
    assert ("unchanged", b"unchanged\0") == (row["c0"], row["c5"])
    assert {UNCHANGED} == {row[name] for name in names if name not in ("c0", "c5")}


def test_what_the_log_has_of_a_column_that_was_dropped_or_changed_since_arrives_as_it_was(
    database: str, capture: Callable[..., Captured]
) -> None:
    """Debezium asks the catalog of today for the types of yesterday's values."""
    columns = {
        "d": ("date", "'infinity'", "infinity"),
        "at": ("timestamptz", "'0044-03-15 00:00+00 BC'", "0044-03-15 00:00:00+00 BC"),
        "i": ("interval", "'-infinity'", "-infinity"),
        "p": ("point", "'(1e300,0.1)'", "(1e+300,0.1)"),
        "n": ("numeric", "'NaN'", "NaN"),
        "f": ("float8", "0.1", "0.1"),
        "b": ("bytea", r"'\x00ff'", "AP8="),
        "a": ("int[]", "'[0:1]={1,2}'", "[0:1]={1,2}"),
        "k": ("int", "7", 7),
        "t": ("text", "'no number'", "no number"),
    }
    defined = ", ".join(f"{name} {kind}" for name, (kind, *_) in columns.items())
    values = ", ".join(literal for _, literal, _ in columns.values())
    captured_columns = {name: wanted for name, (*_, wanted) in columns.items()}
    with psycopg.connect(database, autocommit=True) as connection:
        run(connection, f"CREATE TABLE shifting (id int PRIMARY KEY, {defined})")
        captured = capture("public.shifting")
        source.pause(captured.spec)
        run(connection, f"INSERT INTO shifting VALUES (1, {values})")  # noqa: S608
        for name in ("d", "at", "i", "p", "n", "f", "b", "a"):
            run(connection, f"ALTER TABLE shifting DROP {name}")
        run(connection, "ALTER TABLE shifting RENAME k TO renamed")
        run(connection, "ALTER TABLE shifting ALTER t TYPE int USING 5")
        source.resume(captured.spec)
        (event,) = captured.events("shifting")

    assert {"id": 1} | captured_columns == event.after


def test_a_key_is_the_same_bytes_read_and_streamed(
    database: str, capture: Callable[..., Captured]
) -> None:
    """The bytes of a key choose its partition, and tell it from other keys."""
    columns = {
        "name 😀 é": ("text", r"E'a\x01\x1b\x1f\x7f\u2028/\"\\u001b 😀é'"),
        "c": ("char(4)", "'ab'"),
        "n": ("numeric", "'1.50'"),
        "f": ("float8", "'1e23'"),
        "at": ("timestamptz", "'2026-01-02 03:04:05.5+02'"),
        "b": ("bytea", r"'\x00ff'"),
        "ok": ("bool", "true"),
        "i": ("interval", "'1 day -1 hour'"),
        "m": ("mood", "'happy \"very\", {quoted}'"),
        "r": ("int4range", "'[1,5)'"),
        "a": ("text[]", """'{"a b",NULL}'"""),
    }
    insert = f"INSERT INTO keyed VALUES ({', '.join(value for _, value in columns.values())})"  # noqa: S608
    defined = ", ".join(f'"{name}" {kind}' for name, (kind, _) in columns.items())
    names = ", ".join(f'"{name}"' for name in columns)
    with psycopg.connect(database, autocommit=True) as connection:
        make_types(connection)
        run(connection, f"CREATE TABLE keyed ({defined}, PRIMARY KEY ({names}))")
        run(connection, insert)
    captured = capture("public.keyed")
    captured.execute("DELETE FROM keyed", insert, insert.replace("'ab'", "'end'"))

    topic = TableName("public", "keyed").topic(captured.spec.name)
    records = captured.read(topic, lambda record: b'"end "' in record.key)

    assert ["r", "d", None, "c"] == [
        orjson.loads(record.value)["op"] if record.value else None for record in records
    ]
    (key,) = {record.key for record in records}
    assert list(columns) == list(orjson.loads(key))


def drawn_rows(count: int) -> list[tuple[Any, ...]]:
    """Values that nobody chose, the same each time: any bits that are a float, any interval."""
    drawn = random.Random(20261121)  # noqa: S311  # no secret

    def floating(form: str, size: int) -> float:
        return float(struct.unpack(form, drawn.randbytes(size))[0])

    def between(bits: int) -> int:
        return drawn.randrange(-(2**bits), 2**bits)

    return [
        (
            number,
            repr(floating("f", 4)),
            repr(floating("d", 8)),
            f"{between(100)}e{between(5)}",
            f"{between(31)} months {between(31)} days {between(62)} microseconds",
            between(47),
            "".join(chr(drawn.randrange(1, 0xD800)) for _ in range(20)),
            [floating("d", 8) for _ in range(5)],
        )
        for number in range(1, count + 1)
    ]


def test_values_that_nobody_chose_arrive_alike_read_and_streamed(
    database: str, capture: Callable[..., Captured]
) -> None:
    values = drawn_rows(500)
    columns = "id int, f float4, d float8, n numeric, i interval"
    insert = (
        "INSERT INTO drawn SELECT %s + id, f, d, n, i, '1970-01-01'::timestamp + at * interval"
        " '1 microsecond', t, a, format('(%%s,%%s)', f, d)::point FROM given"
    )
    with psycopg.connect(database, autocommit=True) as connection:
        run(connection, f"CREATE TABLE given ({columns}, at bigint, t text, a float8[])")
        more = "at timestamp, t text, a float8[], p point, PRIMARY KEY (id)"
        run(connection, f"CREATE TABLE drawn ({columns}, {more})")
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO given VALUES (%s, %s, %s, %s, %s, %s, %s, %s)", values)
        connection.execute(insert, (0,))
        captured = capture("public.drawn")
        connection.execute(insert, (LATER,))

    rows = rows_of(captured, "drawn")

    assert 2 * len(values) == len(rows)
    for number, *_ in values:
        assert {} == differences(rows[number], rows[number + LATER])


def test_a_label_and_a_field_that_a_type_gained_arrive(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TYPE size AS ENUM ('small')")
        connection.execute("CREATE TYPE box AS (size size)")
        connection.execute("CREATE TABLE grown (id int PRIMARY KEY, size size, box public.box)")
    captured = capture("public.grown")
    captured.execute(
        "INSERT INTO grown VALUES (1, 'small', ROW('small'))",
        "ALTER TYPE size ADD VALUE 'large' BEFORE 'small'",
        "ALTER TYPE public.box ADD ATTRIBUTE note text",
        "INSERT INTO grown VALUES (2, 'large', ROW('large', 'a note'))",
    )

    assert {
        1: {"id": 1, "size": "small", "box": "(small)"},
        2: {"id": 2, "size": "large", "box": '(large,"a note")'},
    } == rows_of(captured, "grown")


def test_a_bytea_of_twenty_megabytes_arrives_read_and_streamed(
    database: str, capture: Callable[..., Captured]
) -> None:
    made = "(SELECT string_agg(sha512(convert_to(i::text, 'UTF8')), '') FROM generate_series({}) i)"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE heavy (id int PRIMARY KEY, n int, b bytea, t text)")
        run(connection, f"INSERT INTO heavy VALUES (1, 1, {made.format('1, 312500')})")  # noqa: S608
        captured = capture("public.heavy")
        # one after another: the connector's queue has a limit, its heap as well
        for number in range(2, 5):
            run(connection, f"INSERT INTO heavy SELECT {number}, 1, b FROM heavy WHERE id = 1")  # noqa: S608
        run(connection, "UPDATE heavy SET n = 2")

        events = captured.events("heavy")
        digests = run(connection, "SELECT id, sha256(b), length(b) FROM heavy WHERE id > 0")

    wanted = {row[0]: row[1:] for row in digests}
    assert {20_000_000} == {size for _, size in wanted.values()}
    decode_row = decoder(described(database, "heavy"))
    found = [decode_row(event.after or {}) for event in events]
    assert [1, 2, 3, 4, 1, 2, 3, 4] == [row["id"] for row in found]
    for row in found[:4]:
        assert (hashlib.sha256(row["b"]).digest(), len(row["b"])) == wanted[row["id"]]
    assert {UNCHANGED} == {row["b"] for row in found[4:]}
