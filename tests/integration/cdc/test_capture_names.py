"""Tables and columns whose names need quotes, or differ from others by case alone."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import orjson
import psycopg
import pytest

from cdc import source
from cdc.capture import CaptureSpec
from cdc.postgres.errors import PreflightError
from cdc.snapshot import reader, reads
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

SCHEMA = 'Odd, "schema" 😀'
TABLES = ("case", "Case", "CASE", 'a b.c"d', "emoji 😀 é", "a_b", "a b")
COLUMNS = ("select", "Mixed Case", 'quote"s', "dot.ted", "emoji 😀 é", "back\\slash", "$1", "%s")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def rows_of(captured: Captured, table: TableName) -> list[tuple[str, dict[str, object]]]:
    """What a table's topic has: how each row came, and the row."""
    where = f"{quoted(table.schema)}.{quoted(table.name)}"
    captured.execute(f"INSERT INTO {where} (id) VALUES (-1)")  # noqa: S608
    topic = captured.spec.table_topics[table]
    records = captured.read(topic, lambda record: b'"id":-1' in record.key)
    values = [orjson.loads(record.value) for record in records]
    assert {table.name} == {value["source"]["table"] for value in values}
    return [(value["op"], value["after"]) for value in values]


def test_names_arrive_as_they_are_and_those_of_another_case_apart(
    database: str, capture: Callable[..., Captured]
) -> None:
    columns = ", ".join(f"{quoted(name)} text DEFAULT 'x'" for name in COLUMNS)
    schema = quoted(SCHEMA)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
        for number, name in enumerate(TABLES):
            table = f"{schema}.{quoted(name)}"
            connection.execute(
                f'CREATE TABLE {table} (id int, {columns}, "Made 😀" int'  # noqa: S608
                f" GENERATED ALWAYS AS (id) STORED, {quoted('the key 😀')} text DEFAULT 'é😀',"
                f" PRIMARY KEY (id, {quoted('the key 😀')}));"
                f" INSERT INTO {table} (id) VALUES ({number})".encode()
            )
    captured = capture(*(f"{SCHEMA}.{name}" for name in TABLES[:-1]))
    for number, name in enumerate(TABLES):
        captured.execute(f"INSERT INTO {schema}.{quoted(name)} (id) VALUES ({number + 100})")  # noqa: S608

    for number, name in enumerate(TABLES[:-1]):
        rest = {**dict.fromkeys(COLUMNS, "x"), "the key 😀": "é😀"}
        assert [
            ("r", {"id": number, "Made 😀": number, **rest}),
            ("c", {"id": number + 100, "Made 😀": number + 100, **rest}),
        ] == rows_of(captured, TableName(SCHEMA, name))


ORDERS, GOODS = TableName("public", "заказ"), TableName("public", "товар")


def test_tables_whose_names_debezium_does_not_tell_apart_have_topics_of_their_own(
    database: str, capture: Callable[..., Captured]
) -> None:
    tables = (ORDERS, GOODS, TableName("public", "a b"), TableName("public", "a_b"))
    with psycopg.connect(database, autocommit=True) as connection:
        for table in tables:
            connection.execute(
                f'CREATE TABLE "{table.name}" (id int PRIMARY KEY, note text)'.encode()
            )
            row = f"INSERT INTO \"{table.name}\" VALUES (0, '{table.name}')"  # noqa: S608
            connection.execute(row.encode())
    before = capture(str(ORDERS), "public.a_b")
    escaped = frozenset({GOODS, tables[2]})
    spec = replace(before.spec, tables=tables, escaped_topics=escaped)

    source.apply(spec)  # the tables that came later have the other names
    reader.run(spec)
    after = replace(before, spec=spec)
    for table in tables:
        after.execute(f"INSERT INTO \"{table.name}\" VALUES (1, '{table.name}')")  # noqa: S608

    assert ORDERS.topic(spec.name) == spec.table_topics[ORDERS] == before.spec.table_topics[ORDERS]
    for table in tables:
        note = {"note": table.name}
        assert [("r", {"id": 0, **note}), ("c", {"id": 1, **note})] == rows_of(after, table)
    with psycopg.connect(database, autocommit=True) as connection:
        read = {each.table: each.topic for each in reads.of_source(connection, spec.name, 1)}
    assert read == {table: spec.table_topics[table] for table in tables}
    assert not source.plan(spec)


def test_the_topic_of_a_captured_table_keeps_its_name(
    database: str, capture: Callable[..., Captured]
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f'CREATE TABLE "{ORDERS.name}" (id int PRIMARY KEY)')
        connection.execute(f'CREATE TABLE "{GOODS.name}" (id int PRIMARY KEY)')
    spec = capture(str(ORDERS)).spec
    other = replace(spec, tables=(ORDERS, GOODS), escaped_topics=frozenset({ORDERS}))

    (refused,) = [found for found in source.plan(other) if not found.repaired and found.hint]
    assert "do not list it in escaped_topics" in str(refused.hint)
    with pytest.raises(PreflightError, match="cannot be captured") as error:
        source.apply(other)
    assert spec.table_topics[ORDERS] in str(error.value.detail)
    source.apply(replace(other, escaped_topics=frozenset({GOODS})))

    source.remove(spec, with_topics=True)
    source.apply(other)  # captured anew, its topic can have another name


def test_columns_that_differ_by_case_alone_are_refused_before_anything_is_made(
    database: str, connect_url: str, kafka_bootstrap: str
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute('CREATE TABLE alike (id int PRIMARY KEY, name text, "Name" text)')
    spec = CaptureSpec(
        "alike", database, (TableName("public", "alike"),), connect_url, kafka_bootstrap
    )

    with pytest.raises(PreflightError) as refused:
        source.apply(spec)

    assert "public.alike" in str(refused.value.detail)
    assert "name, Name" in str(refused.value.detail)


def test_a_database_that_does_not_know_the_encoding_of_its_texts_is_refused(
    postgres_dsn: str, connect_url: str, kafka_bootstrap: str
) -> None:
    name = f"t_{secrets.token_hex(6)}"
    made = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute(made.encode())
        try:
            dsn = urlsplit(postgres_dsn)._replace(path=f"/{name}").geturl()
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            spec = CaptureSpec(
                "coded", dsn, (TableName("public", "t"),), connect_url, kafka_bootstrap
            )
            with pytest.raises(PreflightError, match="cannot be captured") as refused:
                source.apply(spec)
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    assert "encoding" in str(refused.value.detail)
