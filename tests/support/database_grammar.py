"""Databases by chance: a grammar of what Postgres lets people make, and of what they then do.

A database is a list of statements. Some of them the server refuses, as it may: what counts is that
the statements of the application that it takes before capture it takes afterwards, too.
"""

# ruff: noqa: S608, ISC004  # it makes SQL, for a database of its own

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

COPIED: Final = f"{tempfile.gettempdir()}/headwater-copied-{os.getpid()}"
"""What the application copies rows to and from; the server's file."""

NAMES: Final = (
    "orders", "events", "columns", "order", "select", "user", "__EFMigrationsHistory", "source",
    "Orders", "ORDERS", "заказ", "товар", "表", "naïve", "a b", "a.b", ".x", "x.", 'say "hi"',
    "a:b", "a,b", "pay$id", "(id)", "a;b", "a\\b", "100%", "%s", "{}", "[0]", "a|b", "it's", "-x",
    "x" * 63, "é" * 31, "😀", "\\N", "null", "id", "*", "a/b", "?", "^a$", "(?i)x", "tab\tx",
    "new\nline", "`", "a`b",
)  # fmt: skip
"""Any that Postgres takes."""

VALUES: Final = {
    "int": ("1", "2", "3"),
    "bigint": ("1", "-2", "9007199254740993"),
    "text": ("'a'", "''", r"'\N'"),
    "numeric": ("1.0", "'NaN'", "2"),
    "date": ("'2020-01-01'", "'infinity'", "'2020-01-03'"),
    "boolean": ("true", "false", "true"),
    "uuid": (
        "'00000000-0000-0000-0000-000000000001'",
        "'00000000-0000-0000-0000-000000000002'",
        "'00000000-0000-0000-0000-000000000003'",
    ),
    "varchar(5)": ("'a'", "'b'", "'c'"),
    "mood": ("'sad'", "'happy'", "'it''s'"),
    "posint": ("1", "2", "3"),
    "int4range": ("'[1,2)'", "'[2,3)'", "'[3,4)'"),
    "daterange": (
        "'[2020-01-01,2020-02-01)'",
        "'[2020-02-01,2020-03-01)'",
        "'[2020-03-01,2020-04-01)'",
    ),
    "timestamptz": ("'2020-01-01Z'", "'-infinity'", "'2020-01-03Z'"),
    "jsonb": ("'{}'", "'null'", "'[1]'"),
    "text[]": ("'{}'", "'{a,NULL}'", "NULL"),
    "bytea": (r"'\x00'", "''", "NULL"),
    "pair": ("'(1,a)'", "NULL", "'(2,)'"),
}
"""Three values of each type; those in keys are none of the last."""

KEYABLE: Final = tuple(VALUES)[:13]
TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'happy', 'it''s')",
    "CREATE DOMAIN posint AS int CHECK (VALUE > 0)",
    "CREATE TYPE pair AS (n int, t text)",
)


@dataclass
class Column:
    """A column: its name, type, and what follows the type."""

    name: str
    type: str
    rest: str = ""
    generated: bool = False


@dataclass
class Table:
    """A relation that the application writes to."""

    name: str
    columns: list[Column]
    key: list[str] = field(default_factory=list)
    partitioned: bool = False
    used: set[str] = field(default_factory=set)  # columns that something depends on


@dataclass
class Database:
    """What makes a database, and what an application then does."""

    schema: str
    made: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return ";\n".join([f"CREATE SCHEMA {q(self.schema)}", *self.made, "-- then", *self.done])


def q(name: str) -> str:
    """An identifier."""
    return '"' + name.replace('"', '""') + '"'


def chance(draw: st.DrawFn, one_in: int) -> bool:
    """Whether something happens that mostly does not, so that failures shrink to without it."""
    return draw(st.integers(0, one_in - 1)) == one_in - 1


def listed(names: Sequence[str]) -> str:
    """Identifiers with commas."""
    return ", ".join(map(q, names))


@st.composite
def databases(draw: st.DrawFn) -> Database:
    """A database of one to three tables, with children and partitions, and statements."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=3, max_size=3, unique=True))
    schema = draw(st.sampled_from(["app", "app", "acme.com", "Ünder score", 'q"x', "select"]))
    database = Database(schema, list(TYPES))
    there = names[: draw(st.integers(1, 3))]
    for name in there:
        table = draw(tables(database, name))
        members = [table]
        if table.partitioned:
            members += draw(partitions(database, table))
        elif chance(draw, 4):
            members.append(draw(child(database, table)))
        for member in members:
            draw(uniques(database, member))
            identity(draw, database, member)
        for member in members:
            draw(statements(database, member))
    for name in there:
        draw(changes(database, name))
    return database


@st.composite
def tables(draw: st.DrawFn, database: Database, name: str) -> Table:
    """A table with its columns and primary key."""
    columns = draw(columns_of())
    table = Table(name, columns)
    plain = [c.name for c in columns if not c.generated]
    keyable = [c.name for c in columns if c.type in KEYABLE]
    table.partitioned = bool(plain) and columns[0].type in KEYABLE and chance(draw, 3)
    parts = [f"{q(c.name)} {c.type} {c.rest}" for c in columns]
    kind = draw(
        st.sampled_from(
            ["plain", "plain", "plain", "plain", "include", "temporal", "defer", "none"]
        )
    )
    if keyable and kind in {"plain", "include", "defer"}:
        table.key = draw(st.lists(st.sampled_from(keyable), min_size=1, max_size=2, unique=True))
        if table.partitioned and draw(st.integers(0, 3)):
            table.key = list(dict.fromkeys([columns[0].name, *table.key]))
        rest = [c.name for c in columns if c.name not in table.key]
        more = {
            "plain": "",
            "include": f" INCLUDE ({listed(rest[:2])})" if rest else "",
            "defer": " DEFERRABLE INITIALLY DEFERRED",
        }[kind]
        parts.append(f"PRIMARY KEY ({listed(table.key)}){more}")
        table.used |= {*table.key, *rest[:2]}
    elif kind == "temporal":
        ids, during = Column("room", "int4range"), Column("during", "daterange")
        columns += [ids, during]
        table.key = [ids.name, during.name]
        parts += ["room int4range", "during daterange"]
        parts.append("PRIMARY KEY (room, during WITHOUT OVERLAPS)")
        table.used |= set(table.key)
    unlogged = "UNLOGGED " if not table.partitioned and chance(draw, 20) else ""
    how = ""
    if table.partitioned:
        table.used.add(columns[0].name)
        how = f" PARTITION BY {draw(st.sampled_from(['RANGE', 'LIST', 'HASH']))} ({q(plain[0])})"
    database.made.append(f"CREATE {unlogged}TABLE {q(name)} ({', '.join(parts)}){how}")
    return table


@st.composite
def columns_of(draw: st.DrawFn) -> list[Column]:
    """Columns; some tables have none."""
    few = 0 if chance(draw, 20) else draw(st.integers(1, 3))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=few, max_size=few * 2, unique=True))
    columns: list[Column] = []
    for name in names:
        base = next((c for c in columns if c.type in {"int", "text"} and not c.generated), None)
        form = draw(st.sampled_from(["", "", "NOT NULL", "NOT NULL", "stored", "virtual", "own"]))
        if form in {"stored", "virtual"} and base is not None:
            made = f"{q(base.name)} * 2" if base.type == "int" else f"lower({q(base.name)})"
            rest = f"GENERATED ALWAYS AS ({made}) {form.upper()}"
            columns.append(Column(name, base.type, rest, generated=True))
        elif form == "own":
            columns.append(Column(name, "int", "GENERATED BY DEFAULT AS IDENTITY"))
        else:
            rest = form if form == "NOT NULL" else ""
            columns.append(Column(name, draw(st.sampled_from(tuple(VALUES))), rest))
    return columns


@st.composite
def partitions(draw: st.DrawFn, database: Database, table: Table) -> list[Table]:
    """Partitions of a table, the last of which may be missing, unlogged or partitioned itself."""
    how = database.made[-1].rpartition("PARTITION BY ")[2].split()[0]
    type_ = table.columns[0].type
    first, second, _ = VALUES[type_]
    bounds = {
        "RANGE": ("FROM (MINVALUE) TO (MAXVALUE)",),
        "LIST": (f"IN ({first})", f"IN ({second})"),
        "HASH": ("WITH (MODULUS 2, REMAINDER 0)", "WITH (MODULUS 2, REMAINDER 1)"),
    }[how]
    found = []
    for number, bound in enumerate(bounds[: draw(st.integers(0, len(bounds)))]):
        name = f"part {number} of {table.name}"[:25]
        unlogged = "UNLOGGED " if chance(draw, 15) else ""
        own = f" ({draw(own_key(table))})" if not table.key and draw(st.booleans()) else ""
        of = f"PARTITION OF {q(table.name)}"
        database.made.append(f"CREATE {unlogged}TABLE {q(name)} {of}{own} FOR VALUES {bound}")
        found.append(Table(name, table.columns, table.key, used=table.used))
    if how != "HASH" and draw(st.booleans()):
        name = f"rest of {table.name}"[:25]
        database.made.append(f"CREATE TABLE {q(name)} PARTITION OF {q(table.name)} DEFAULT")
        found.append(Table(name, table.columns, table.key, used=table.used))
    return found


@st.composite
def own_key(draw: st.DrawFn, table: Table) -> str:
    """A primary key of a partition alone."""
    keyable = [c.name for c in table.columns if c.type in KEYABLE]
    return f"PRIMARY KEY ({q(draw(st.sampled_from(keyable)))})"


@st.composite
def child(draw: st.DrawFn, database: Database, table: Table) -> Table:
    """A table that inherits."""
    name = f"child of {table.name}"[:25]
    key = draw(st.sampled_from(["", "lives int PRIMARY KEY", "lives int"]))
    database.made.append(f"CREATE TABLE {q(name)} ({key}) INHERITS ({q(table.name)})")
    more = [Column("lives", "int")] if key else []
    if "KEY" in key:
        table.used.add("lives")  # without its key, the server refuses its changes: see the docs
    return Table(name, [*table.columns, *more], ["lives"] if "KEY" in key else [], used=table.used)


@st.composite
def uniques(draw: st.DrawFn, database: Database, table: Table) -> None:
    """Unique indexes and constraints."""
    keyable = [c.name for c in table.columns if c.type in KEYABLE]
    if not keyable or not chance(draw, 2):
        return
    columns = draw(st.lists(st.sampled_from(keyable), min_size=1, max_size=2, unique=True))
    table.used |= {*columns, table.columns[-1].name}
    on = f"ON {q(table.name)}"
    database.made.append(
        draw(
            st.sampled_from([
                f"CREATE UNIQUE INDEX {q('u ' + table.name[:9])} {on} ({listed(columns)})",
                f"CREATE UNIQUE INDEX {on} ({listed(columns)}) NULLS NOT DISTINCT",
                f"CREATE UNIQUE INDEX {on} ({listed(columns)}) INCLUDE"
                f" ({q(table.columns[-1].name)})",
                f"CREATE UNIQUE INDEX {on} ({listed(columns)})"
                f" WHERE {q(columns[0])} IS NOT NULL",
                f"CREATE UNIQUE INDEX {on} (({q(columns[0])}::text || 'x'))",
                f"ALTER TABLE {q(table.name)} ADD UNIQUE ({listed(columns)}) DEFERRABLE",
                f"ALTER TABLE {q(table.name)} ADD UNIQUE ({listed(columns)})",
            ])
        )
    )  # fmt: skip


def identity(draw: st.DrawFn, database: Database, table: Table) -> None:
    """A replica identity, or the one that tables have anyway."""
    how = draw(st.sampled_from(["", "", "", "FULL", "FULL", "NOTHING", "USING"]))
    if how in {"FULL", "NOTHING"}:
        database.made.append(f"ALTER TABLE {q(table.name)} REPLICA IDENTITY {how}")
    elif how:
        index = f"u {table.name[:9]}"
        database.made.append(f"ALTER TABLE {q(table.name)} REPLICA IDENTITY USING INDEX {q(index)}")


@st.composite
def statements(draw: st.DrawFn, database: Database, table: Table) -> None:
    """What an application does with rows."""
    name, done = q(table.name), database.done
    given = [c for c in table.columns if not c.generated]
    names = listed([c.name for c in given])

    def row(number: int) -> str:
        return ", ".join(VALUES[c.type][number] for c in given)

    if not given:
        done += [f"INSERT INTO {name} DEFAULT VALUES", f"DELETE FROM {name}"]
        return
    done += [f"INSERT INTO {name} ({names}) VALUES ({row(n)})" for n in range(3)]
    changed = draw(st.sampled_from(given))
    sets = f"{q(changed.name)} = {draw(st.sampled_from(VALUES[changed.type]))}"
    where = f"{q(given[0].name)}::text = {VALUES[given[0].type][0]}::{given[0].type}::text"
    conflict = f"INSERT INTO {name} ({names}) VALUES ({row(1)}) ON CONFLICT"
    on = f"({listed(table.key)})" if table.key else ""
    choice = [
        f"UPDATE {name} SET {sets}",
        f"UPDATE {name} SET {sets} WHERE {where}",
        f"DELETE FROM {name} WHERE {where}",
        f"{conflict} DO NOTHING",
        f"{conflict} {on} DO UPDATE SET {q(changed.name)} = excluded.{q(changed.name)}",
        f"MERGE INTO {name} t USING (SELECT 1) s ON true WHEN MATCHED THEN UPDATE SET {sets}",
        f"MERGE INTO {name} t USING (SELECT 1) s ON {where} WHEN MATCHED THEN DELETE"
        f" WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({row(0)})",
        f"SELECT * FROM {name} FOR UPDATE",
        f"WITH gone AS (DELETE FROM {name} RETURNING *) SELECT count(*) FROM gone",
        f"INSERT INTO {name} ({names}) SELECT {names} FROM {name} OFFSET 2",
    ]
    done += draw(st.lists(st.sampled_from(choice), max_size=5))
    done += [f"UPDATE {name} SET {sets}", f"DELETE FROM {name} WHERE {where}"]
    if chance(draw, 3):
        done += [
            f"COPY (SELECT {names} FROM {name}) TO '{COPIED}'",
            f"DELETE FROM {name}",
            f"COPY {name} ({names}) FROM '{COPIED}'",
        ]
    if chance(draw, 6):
        done.append(f"TRUNCATE {name}")
    spare = [c for c in given if c.name not in table.used]
    if spare and chance(draw, 3):
        column = q(draw(st.sampled_from(spare)).name)
        done += [
            draw(
                st.sampled_from([
                    f"ALTER TABLE {name} DROP COLUMN {column} CASCADE",
                    f"ALTER TABLE {name} ALTER COLUMN {column} TYPE text",
                    f"ALTER TABLE {name} ALTER COLUMN {column} SET DEFAULT NULL",
                    f"ALTER TABLE {name} ALTER COLUMN {column} DROP NOT NULL",
                ])
            ),
            f"DELETE FROM {name}",
        ]  # fmt: skip


@st.composite
def changes(draw: st.DrawFn, database: Database, table: str) -> None:
    """What an application does with a table, and with its rows then."""
    name, more = q(table), q(f"more of {table}"[:25])
    done = draw(
        st.sampled_from([
            [],
            [f'ALTER TABLE {name} ADD COLUMN "a new: one" int DEFAULT 5'],
            [f"ALTER TABLE {name} ADD COLUMN more_mood mood NOT NULL DEFAULT 'sad'"],
            ["ALTER TYPE mood RENAME VALUE 'sad' TO 'glad'"],
            ["ALTER TYPE pair ADD ATTRIBUTE more int CASCADE"],
            ["ALTER DOMAIN posint ADD CHECK (VALUE < 100)"],
            [f"CREATE TABLE {more} () INHERITS ({name})", f"UPDATE {more} SET ctid = ctid"],
            [f"CREATE TABLE {more} () INHERITS ({name})", f"DELETE FROM {more}"],
            [f"CREATE TABLE {more} PARTITION OF {name} DEFAULT", f"DELETE FROM {more}"],
            [f"CREATE TABLE {more} (LIKE {name} INCLUDING ALL)", f"DELETE FROM {more}"],
            [f"CREATE TABLE {more} (LIKE {name} INCLUDING DEFAULTS)",
             f"ALTER TABLE {name} ATTACH PARTITION {more} DEFAULT", f"DELETE FROM {more}"],
            [f"ALTER TABLE {name} DETACH PARTITION {q(f'part 0 of {table}'[:25])}",
             f"DELETE FROM {q(f'part 0 of {table}'[:25])}"],
            [f"ALTER TABLE {name} RENAME TO renamed", "DELETE FROM renamed"],
            ["CREATE SCHEMA IF NOT EXISTS elsewhere", f"ALTER TABLE {name} SET SCHEMA elsewhere",
             f"DELETE FROM elsewhere.{name}"],
            [f"DROP TABLE {name} CASCADE", f"CREATE TABLE {name} (id int)", f"DELETE FROM {name}"],
            [f"ALTER TABLE {name} CLUSTER ON no_index", f"ALTER TABLE {name} DISABLE TRIGGER ALL"],
            [f"CREATE VIEW {more} AS SELECT * FROM {name}", f"DELETE FROM {more}"],
        ])
    )  # fmt: skip
    database.done += [*done, f"DELETE FROM {name}"]
