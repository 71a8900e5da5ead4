"""The mark of the catalogs changes with every shape, and stays while no table changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import own_schema
from cdc.schema_change import catalog_mark, history
from cdc.schema_change.trigger import SHAPE
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

TABLES = [TableName("public", name) for name in ("t", "u", "p")]
MADE = """
CREATE DOMAIN points AS int DEFAULT 7;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE place AS (x int, m mood);
CREATE DOMAIN moods AS mood[];
CREATE TABLE t (id int PRIMARY KEY, a text, b int, m mood);
CREATE TABLE u (id int NOT NULL, n points, many points[], p place, ms moods);
CREATE TABLE p (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE other (id int, x int);
INSERT INTO t VALUES (1); INSERT INTO u VALUES (1); INSERT INTO p1 VALUES (1, '2020-01-01')
"""
STATEMENTS = (
    "ALTER TABLE {t} ADD c{n} int",
    "ALTER TABLE {t} ADD c{n} timestamptz DEFAULT '2020-01-01 00:00+02'",
    "ALTER TABLE {t} RENAME id TO id{n}",
    "ALTER TABLE {t} ALTER id TYPE bigint",
    "ALTER TABLE {t} ALTER id DROP NOT NULL",
    "ALTER TABLE {t} ALTER id SET DEFAULT 3",
    "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
    "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
    "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey",
    "CREATE UNIQUE INDEX i{n} ON u (id)",
    "CREATE UNIQUE INDEX CONCURRENTLY i{n} ON t (id)",
    "DROP INDEX i{n}",
    "ALTER DOMAIN points RENAME TO points{n}",
    "ALTER DOMAIN points SET DEFAULT 8",
    "ALTER TYPE mood RENAME TO mood{n}",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'sad{n}'",
    "ALTER TYPE mood ADD VALUE 'm{n}'",
    "ALTER TYPE place ADD ATTRIBUTE a{n} int",
    "ALTER TYPE place RENAME ATTRIBUTE x TO x{n}",
    "ALTER TYPE place DROP ATTRIBUTE a{n}",
    "ALTER TABLE p ADD z{n} int DEFAULT 3",
    "CREATE TABLE p{n}x PARTITION OF p FOR VALUES FROM ('20{n}-01-01') TO ('20{n}-02-01')",
    "CREATE TABLE p{n}x (LIKE p)",
    "ALTER TABLE p ATTACH PARTITION p{n}x FOR VALUES FROM ('20{n}-01-01') TO ('20{n}-02-01')",
    "ALTER TABLE p DETACH PARTITION p1",
    "ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY",
    "ALTER TABLE p1 RENAME TO part{n}",
    "DROP TABLE {t}",
    "ALTER TABLE {t} RENAME TO {t}{n}",
    "CREATE TABLE {t} (id int PRIMARY KEY)",
    "ALTER TABLE other RENAME TO {t}",
    "CREATE SCHEMA s{n}",
    "ALTER TABLE {t} SET SCHEMA s{n}",
    "ALTER SCHEMA s{n} RENAME TO r{n}",
    "TRUNCATE {t}",
)
"""Also such as a shape does not tell of, and such as the server refuses by then."""

QUIET = (
    "CREATE TEMP TABLE scratch (id int)",
    "DROP TABLE scratch",
    "CREATE TABLE more (id int PRIMARY KEY)",
    "ALTER TABLE other ADD y int",
    "CREATE INDEX ON other (x)",
    "ANALYZE",
    "VACUUM t",
    "INSERT INTO t VALUES (2)",
    "UPDATE u SET id = 5",
    "CREATE TYPE color AS ENUM ('red')",
)


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
        own_schema.ensure(connection)
        history.observe(connection, TABLES)
        yield connection


def mark(source: psycopg.Connection[Any]) -> tuple[object, ...]:
    return catalog_mark.read(source, history.oids(source, TABLES))


def shapes(source: psycopg.Connection[Any]) -> list[Any]:
    """What each table is like, one statement for each."""
    shape = SHAPE.format(oid="%s").encode()
    oids = history.oids(source, TABLES)
    return [(oid, source.execute(shape, (oid,)).fetchone()) for oid in oids]


@pytest.mark.rotating("seed", range(8))
def test_whatever_changes_a_shape_changes_the_mark_and_is_noted_once(
    source: psycopg.Connection[Any], seed: int
) -> None:
    chosen = random.Random(seed)  # noqa: S311
    before, at = shapes(source), mark(source)
    changed = 0
    for _ in range(40):
        statement = chosen.choice(STATEMENTS).format(
            t=chosen.choice(TABLES).name, n=chosen.randrange(30, 34)
        )
        try:
            source.execute(statement.encode())
        except psycopg.Error:
            continue
        now, there = shapes(source), mark(source)

        assert there != at or now == before, statement
        noted = history.observe(source, TABLES)
        assert noted or now == before, statement
        assert [] == history.observe(source, TABLES), statement
        changed += now != before
        before, at = now, there
    assert changed


def test_what_changes_no_captured_table_leaves_the_mark_as_it_is(
    source: psycopg.Connection[Any],
) -> None:
    at = mark(source)
    for statement in QUIET:
        source.execute(statement.encode())
        assert at == mark(source), statement


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("ALTER TABLE t ADD x int", 0),
        ("ALTER TABLE p ADD x int", 2),
        ("ALTER TABLE p1 ALTER v SET DEFAULT 'x'", 2),
        ("DROP TABLE u", 1),
    ],
)
def test_ddl_that_is_under_way_is_known_of_its_table_also_by_a_partition(
    source: psycopg.Connection[Any], database: str, statement: str, table: int
) -> None:
    oids = history.oids(source, TABLES)
    at = mark(source)
    with psycopg.connect(database) as writer:
        writer.execute(statement.encode())
        assert {oids[table]} == catalog_mark.being_changed(source, oids)
        assert at == mark(source)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            history.observe(source, TABLES)
        writer.rollback()
    assert frozenset() == catalog_mark.being_changed(source, oids)
    assert [] == history.observe(source, TABLES)
