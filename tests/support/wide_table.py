"""A table with columns of all types, its view, and rows of both that differ."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from cdc.column_rule import ColumnRules, Hiding
from cdc.postgres import catalog
from cdc.table import ColumnKind, TableName
from cdc.values import decode
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.stores.delta.sink import WarehouseSink
from projections.verification import source_rows

if TYPE_CHECKING:
    import random
    from pathlib import Path

    import psycopg

WIDE = TableName("public", "wide")
POOLS: dict[str, tuple[str, list[str | None]]] = {
    "id": ("bigint", []),
    "part": ("text", ["", "a", "b:c", "\\N", 'd,"e"', "ø🚲"]),
    "small": ("smallint", ["0", "-1", "32767", None]),
    "paid": ("boolean", ["t", "f", None]),
    "total": ("numeric(12,2)", ["0", "-1.1", "1234567890.99", None]),
    "digits": ("numeric", ["0", "0.10", "1e30", "-3.33", "NaN", "Infinity", None]),
    "weight": ("double precision", ["0", "-0", "NaN", "Infinity", "1e300", "0.1", None]),
    "light": ("real", ["0", "-0", "0.1", "-Infinity", "3.4028235e38", "1e-45", None]),
    "note": ("text", ["", "NULL", "\\.", '"', "a\n\r\n,\t", "søster 🚲", "'", None]),
    "code": ("char(6)", ["x", "", "y ", None]),
    "token": ("uuid", ["00000000-0000-0000-0000-000000000001", None]),
    "doc": ("json", ['{"a": 1.0, "a": 9007199254740993}', "null", '{"a":1}', None]),
    "extra": ("jsonb", ['{"b": [1, null]}', "{}", "null", None]),
    "day": ("date", ["0001-01-01", "1600-02-29", "9999-12-31", None]),
    "at_time": ("time", ["00:00", "23:59:59.5", "12:00:00.000001", None]),
    "noted_at": ("timestamp", ["0001-01-01", "1969-12-31 23:59:59.000001", "9999-12-31", None]),
    "placed_at": ("timestamptz", ["2026-01-01 00:00:00.123456+02", "1900-01-01Z", None]),
    "lasted": ("interval", ["1 mon -2 days", "0", None]),
    "blob": ("bytea", ["\\x", "\\x00", "\\xdeadbeef", None]),
    "tags": ("text[]", ["{}", '{x,NULL,"",a\\"b}', None]),
    "span": ("int4range", ["[1,5)", "empty", None]),
    "feeling": ("mood", ["sad", 'ok "fine"', None]),
    "address": ("inet", ["10.0.0.1/8", None]),
}
KEYS = (
    *("id", "part, id", "digits, id", "weight, light, id", "code, feeling, id"),
    *("placed_at, noted_at, day, at_time, id", "blob, token, extra, tags, id"),
)
VERSION = 1 << 56
RULES = {WIDE: ColumnRules(hash=["token"], mask={"code": 3}, exclude=["feeling"])}
UNHOLDABLE = (
    *("at_time = '24:00'", "noted_at = 'infinity'", "day = '0044-03-15 BC'", "total = 'NaN'"),
    "placed_at = '10000-01-01'",
)


def insert(
    connection: psycopg.Connection, plan_keys: str, draw: random.Random, numbers: range
) -> None:
    required = set(plan_keys.split(", "))
    values = ", ".join(["%s"] * len(POOLS))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO wide VALUES ({values})",  # noqa: S608
            [random_row(draw, number, required) for number in numbers],
        )


def random_row(draw: random.Random, number: int, required: set[str]) -> list[str | None]:
    row: list[str | None] = [str(number)]
    for name, (_, pool) in list(POOLS.items())[1:]:
        row.append(
            draw.choice([value for value in pool if value is not None or name not in required])
        )
    return row


def make(  # noqa: PLR0913  # the parts of a table
    connection: psycopg.Connection,
    keys: str,
    draw: random.Random,
    rows: int,
    rules: dict[TableName, ColumnRules] | None = None,
    *,
    fillfactor: int = 100,
) -> ViewPlan:
    """A table with random rows, in the more blocks the smaller the fill factor, and its view."""
    connection.execute("DROP TABLE IF EXISTS wide; DROP TYPE IF EXISTS mood")
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok \"fine\"')")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in POOLS.items())
    stored = f"WITH (fillfactor = {fillfactor})"
    connection.execute(f"CREATE TABLE wide ({columns}, PRIMARY KEY ({keys})) {stored}".encode())
    insert(connection, keys, draw, range(rows))
    schema = catalog.describe(connection, [WIDE], rules)[WIDE]
    return ViewPlan("wide", "t", "t.public.wide", schema, schema.key, frozenset({Store.TABLE}))


def spec_of(database: str, plan: ViewPlan, home: Path) -> JobSpec:
    config = JobConfig("t", "", database, "", home, "", "", (), hiding=Hiding(RULES, "salt"))
    return JobSpec(config, (plan,))


def change_of(plan: ViewPlan, document: dict[str, Any], version: int = VERSION) -> RowChange:
    """The change that brings a row of the source, as the stream decodes it."""
    row = {
        column.name: decode(
            column,
            str(value) if column.kind is ColumnKind.FLOAT and value is not None else value,
        )
        for column in plan.schema.columns
        for value in [document.get(column.name)]
    }
    return RowChange(tuple(row[name] for name in plan.keys), version, row, 1)


def fill(spec: JobSpec, at_once: int = 1000) -> list[RowChange]:
    """Writes all rows to the warehouse as the stream would, so many at once."""
    (plan,) = spec.plans
    with source_rows.snapshot(spec.config.source_dsn, "salt") as connection:
        changes = [change_of(plan, row) for row in source_rows.documents(connection, plan)]
    with closing(WarehouseSink(spec.config.addresses.tables)) as sink:
        sink.prepare(plan)
        for first in range(0, len(changes), at_once):
            some = changes[first : first + at_once]
            assert len(some) == sink.apply(plan, some).upserted
    return changes


def damage(
    connection: psycopg.Connection, spec: JobSpec, draw: random.Random, changes: list[RowChange]
) -> None:
    """Alters, adds and removes rows of the source and of the table, and doubles one there."""
    (plan,) = spec.plans
    ids = [change.row["id"] for change in changes if change.row is not None]
    draw.shuffle(ids)
    altered, deleted, (doubled,), lost = ids[:25], ids[25:30], ids[30:31], ids[31:35]
    others = [name for name in POOLS if name not in plan.keys and name != "note"]
    for number in altered:
        name = draw.choice(others)
        kind, pool = POOLS[name]
        connection.execute(
            f"UPDATE wide SET {name} = %s::{kind} WHERE id = %s".encode(),  # noqa: S608
            (draw.choice(pool), number),
        )
    connection.execute("DELETE FROM wide WHERE id = ANY (%s)", (deleted,))
    insert(connection, ", ".join(plan.keys), draw, range(1000, 1004))
    table = DeltaTable(str(spec.config.addresses.tables / plan.name))
    rows = table.to_pyarrow_table()
    write_deltalake(table, rows.filter(pc.equal(rows["id"], doubled)), mode="append")
    gone = [
        RowChange(change.key, VERSION + 1, None, 1)
        for change in changes
        if change.row is not None and change.row["id"] in lost
    ]
    with closing(WarehouseSink(spec.config.addresses.tables)) as sink:
        assert 4 == sink.apply(plan, gone).deleted
