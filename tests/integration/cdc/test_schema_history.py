"""What the source notes of changes of its tables, and what is found by looking where it may not."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest

from cdc.postgres import own_schema
from cdc.schema_change import history, trigger
from cdc.schema_change.check import checks
from cdc.schema_change.difference import changes_of
from cdc.table import TableName

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

T, P = TableName("public", "t"), TableName("public", "p")
MADE = """
CREATE DOMAIN points AS int DEFAULT 7;
CREATE TABLE t (id int PRIMARY KEY, a text, b int, twice int GENERATED ALWAYS AS (b * 2) STORED);
CREATE TABLE p (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE other (id int)
"""

STATEMENTS = (
    "ALTER TABLE t ADD n int",
    "ALTER TABLE t ADD c timestamptz DEFAULT '2020-01-01 00:00+02'",
    "ALTER TABLE t ADD d points, ADD e int[] DEFAULT '{1,NULL}', ADD f bytea DEFAULT '\\xff'",
    "ALTER TABLE t ADD g uuid DEFAULT gen_random_uuid()",
    "ALTER TABLE t RENAME a TO label",
    "ALTER TABLE t DROP twice, ALTER b TYPE bigint",
    "ALTER TABLE t ALTER b TYPE bigint USING b + 1",
    "ALTER TABLE t ALTER label TYPE varchar",
    "ALTER TABLE t DROP n",
    "ALTER TABLE t ALTER c SET NOT NULL, ALTER c SET STATISTICS 10",
    "ALTER DOMAIN points RENAME TO score",
    "ALTER TABLE t DROP CONSTRAINT t_pkey",
    "CREATE UNIQUE INDEX by_id ON t (id)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')",
    "CREATE TABLE p3 (LIKE p)",
    "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM ('2022-01-01') TO ('2023-01-01')",
    "ALTER TABLE p DETACH PARTITION p3",
    "DROP TABLE p2",
    "ALTER TABLE p ADD z int DEFAULT 3",
    "ALTER TABLE other ADD a int",
    "CREATE TEMP TABLE t (id int)",
    "DROP TABLE pg_temp.t",
    "ALTER TABLE t RENAME TO things",
    "ALTER SCHEMA public RENAME TO shop",
    "DROP TABLE shop.things",
)


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(MADE)
        own_schema.ensure(connection)
        yield connection


def noted(source: psycopg.Connection[Any], table: TableName, after: int = 0) -> list[str]:
    known = history.of_tables(source, [table])[table]
    return [
        f"{change}{'' if change.compatible else ', incompatible'}"
        f"{', read again' if change.needs_read else ''}"
        for _, changes in changes_of(known, after)
        for change in changes
    ]


def test_the_source_notes_each_change_of_a_captured_table(source: psycopg.Connection[Any]) -> None:
    assert trigger.ensure(source)
    assert trigger.ensure(source) == []
    assert history.unseen(source, [T, P]) == [T, P]
    assert history.observe(source, [T, P]) == [T, P]
    assert history.unseen(source, [T, P]) == []

    for statement in STATEMENTS:
        source.execute(statement.encode())

    assert noted(source, T) == [
        "column added: n (integer)",
        "column added: c (timestamp with time zone), read again",
        "column added: d (public.points), read again",
        "column added: e (integer[]), read again",
        "column added: f (bytea), read again",
        "column added: g (uuid), read again",
        "column renamed: a (label), read again",
        "column retyped: b (integer to bigint), read again",
        "column dropped: twice (integer), read again",
        "rows rewritten: public.t, read again",
        "column retyped: label (text to character varying)",
        "column dropped: n (integer), read again",
        "key changed: public.t (id to none), incompatible, read again",
        "key changed: public.t (none to id), incompatible, read again",
        "table renamed: public.t (public.things), incompatible, read again",
        "table renamed: public.things (shop.things), incompatible, read again",
        "table dropped: shop.things, incompatible, read again",
    ]
    assert noted(source, P) == [
        "partition attached: public.p2",
        "partition attached: public.p3, read again",
        "partition detached: public.p3, read again",
        "partition detached: public.p2, read again",
        "column added: z (integer), read again",
        "table renamed: public.p (shop.p), incompatible, read again",
    ]
    found = history.of_tables(source, [T, P])
    missing = {c.name: c.missing for v in found[T].versions if v.shape for c in v.shape.columns}
    assert {name: text for name, text in missing.items() if name in "cdef"} == {
        "c": None,  # written into the rows with the uuid
        "d": None,
        "e": None,
        "f": None,
    }
    third = found[T].versions[3].shape
    assert third is not None
    assert [c.missing for c in third.columns[-4:]] == [
        "2019-12-31 22:00:00+00",
        "7",
        "{1,NULL}",
        "\\xff",
    ]
    assert trigger.drop(source)
    assert not trigger.active(source)
    renamed = [check.message for check in checks(source, [P])]
    assert renamed == ["public.p is called shop.p now: its changes have not been captured since"]


def test_a_note_stands_between_the_rows_before_and_after_it(
    source: psycopg.Connection[Any],
) -> None:
    trigger.ensure(source)
    history.observe(source, [T])

    with source.transaction():
        source.execute("INSERT INTO t (id) VALUES (1)")
        before = history.position(source)
        with pytest.raises(psycopg.errors.DivisionByZero), source.transaction():
            source.execute("ALTER TABLE t ADD never int; SELECT 1 / 0")
        source.execute("ALTER TABLE t ADD x int DEFAULT 5")
        source.execute("INSERT INTO t (id) VALUES (2)")
    after = history.position(source)

    (version,) = history.of_tables(source, [T])[T].versions[1:]
    assert before <= version.lsn < after
    assert version.seen_after is None
    assert noted(source, T) == ["column added: x (integer), read again"]


TYPED = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE DOMAIN moods AS mood[];
CREATE TYPE inner_part AS (m mood);
CREATE TYPE place AS (x int, inside inner_part);
CREATE TABLE row_type (a int);
CREATE TABLE typed (id int PRIMARY KEY, plain mood, nested moods, composite place, whole row_type)
"""
READ_OTHERWISE = {
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'": {"plain", "nested", "composite"},
    "ALTER TYPE mood ADD VALUE 'calm' BEFORE 'glad'": set(),
    "ALTER TYPE mood RENAME TO feeling": set(),
    "ALTER TYPE place ADD ATTRIBUTE y int": {"composite"},
    "ALTER TYPE place RENAME ATTRIBUTE y TO z": set(),
    "ALTER TYPE inner_part ADD ATTRIBUTE n int": {"composite"},
    "ALTER TYPE place DROP ATTRIBUTE x": {"composite"},
    "ALTER TABLE row_type ADD b int": {"whole"},
    "ALTER DOMAIN moods RENAME TO feelings": set(),
}
"""The columns whose stored values read otherwise after each statement."""


@pytest.mark.parametrize("by", ["trigger", "comparison"])
def test_a_type_whose_stored_values_read_otherwise_is_noted(
    source: psycopg.Connection[Any], by: str
) -> None:
    typed = TableName("public", "typed")
    source.execute(TYPED.encode())
    source.execute(
        b"INSERT INTO typed VALUES (1, 'sad', '{sad}', ROW(1, ROW('sad'::mood)), ROW(1))"
    )
    if by == "trigger":
        trigger.ensure(source)
    history.observe(source, [typed])
    for statement, columns in READ_OTHERWISE.items():
        last = history.of_tables(source, [typed])[typed].versions[-1].id
        before = source.execute("SELECT to_jsonb(t.*::text) FROM typed t").fetchone()
        source.execute(statement.encode())
        if by == "comparison":
            history.observe(source, [typed])
        else:
            assert history.observe(source, [typed]) == [], statement

        found = noted(source, typed, last)
        assert {text.partition(": ")[2].partition(" (")[0] for text in found} == columns, statement
        assert all(
            text.startswith("stored values read otherwise: ") and text.endswith(", read again")
            for text in found
        )
        after = source.execute("SELECT to_jsonb(t.*::text) FROM typed t").fetchone()
        assert (before != after) == bool(columns), statement


def test_ddl_goes_through_when_it_cannot_be_noted(source: psycopg.Connection[Any]) -> None:
    trigger.ensure(source)
    history.observe(source, [T])
    warnings: list[str | None] = []
    source.add_notice_handler(lambda notice: warnings.append(notice.message_primary))
    source.execute("ALTER TABLE headwater.schema_changes ADD CHECK (command <> 'ALTER TABLE')")

    source.execute("ALTER TABLE t ADD x int")

    assert len(warnings) == 1
    assert "headwater could not note a change of schema" in str(warnings[0])
    assert noted(source, T) == []
    assert history.observe(source, [T]) == [T]
    assert noted(source, T) == ["column added: x (integer), read again"]


def test_a_role_that_may_make_no_triggers_finds_changes_by_looking(
    source: psycopg.Connection[Any], database: str
) -> None:
    role = f"plain_{secrets.token_hex(4)}"
    source.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT SELECT ON t TO {role};"
        f"GRANT USAGE ON SCHEMA headwater TO {role};"
        f"GRANT ALL ON ALL TABLES IN SCHEMA headwater TO {role}".encode()
    )
    place = urlsplit(database)
    host = place.netloc.rpartition("@")[2]
    dsn = place._replace(netloc=f"{role}:x@{host}").geturl()
    try:
        with psycopg.connect(dsn, autocommit=True) as plain:
            assert not trigger.allowed(plain)
            assert trigger.ensure(plain) == []
            assert history.observe(plain, [T]) == [T]
            looked_at = history.position(plain)
            assert history.observe(plain, [T]) == []
            source.execute("ALTER TABLE t RENAME a TO label")
            source.execute("ALTER TABLE t ALTER id TYPE bigint")
            assert history.observe(plain, [T], looked_at) == [T]

            last = history.of_tables(plain, [T])[T].versions[-1]
            assert (last.seen_after, last.command, last.rewritten) == (
                looked_at,
                history.LOOKED,
                None,
            )
            assert noted(source, T) == [
                "column retyped: id (integer to bigint), read again",
                "column renamed: a (label), read again",
            ]
            with source.transaction():  # what is under way lies before now, and is not seen yet
                source.execute("ALTER TABLE t ADD x int")
                with pytest.raises(psycopg.errors.LockNotAvailable):
                    history.observe(plain, [T], looked_at)
    finally:
        source.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
