"""A mirror in the warehouse is compared by column, with the report that its documents give."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.column_rule import ColumnRules, Hiding
from cdc.lsn import Lsn
from cdc.postgres import catalog, own_schema
from cdc.table import ColumnKind, TableName
from cdc.values import decode
from projections.changes.documents import key_text
from projections.changes.row_change import RowChange
from projections.common.throttle import Throttle
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import ChangeTime, Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.stores.delta import copy_format
from projections.stores.delta.sink import WarehouseSink
from projections.verification import source_batches, source_rows, view_pass
from projections.verification.column_pass import ColumnPass
from projections.verification.truth import SourceTruth
from projections.verification.verify import JobVerification, verify

if TYPE_CHECKING:
    from pathlib import Path

    from projections.verification.report import ViewReport

pytestmark = pytest.mark.integration

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
QUARANTINE = """
INSERT INTO headwater.quarantine (view, store, topic, partition, record_offset, source, key, code,
                                  message, attempts, digest)
SELECT 'wide', 'table', 't.public.wide', 0, count(*), 't', %s, 'HW-P013', '', 1, ''
  FROM headwater.quarantine
"""


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a small table read in many statements and blocks."""
    monkeypatch.setattr(source_batches, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(source_batches, "RANGE_ROWS_MAX", 20)
    monkeypatch.setattr(source_batches, "RANGE_ROWS_MIN", 5)
    monkeypatch.setattr(copy_format, "BLOCK_BYTES", 1500)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[ColumnPass]:
    """The passes by column that were made."""
    made: list[ColumnPass] = []

    def kept(*args: Any) -> ColumnPass:
        made.append(ColumnPass(*args))
        return made[-1]

    monkeypatch.setattr(view_pass, "ColumnPass", kept)
    return made


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


def make(
    connection: psycopg.Connection,
    keys: str,
    draw: random.Random,
    rows: int,
    rules: dict[TableName, ColumnRules] | None = None,
) -> ViewPlan:
    """A table with random rows, and its view."""
    connection.execute("DROP TABLE IF EXISTS wide; DROP TYPE IF EXISTS mood")
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok \"fine\"')")
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in POOLS.items())
    connection.execute(f"CREATE TABLE wide ({columns}, PRIMARY KEY ({keys}))".encode())
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


def fill(spec: JobSpec) -> list[RowChange]:
    """Writes all rows to the warehouse as the stream would."""
    (plan,) = spec.plans
    with source_rows.snapshot(spec.config.source_dsn, "salt") as connection:
        changes = [change_of(plan, row) for row in source_rows.documents(connection, plan)]
    with closing(WarehouseSink(spec.config.addresses.tables)) as sink:
        sink.prepare(plan)
        assert len(changes) == sink.apply(plan, changes).upserted
    return changes


def both(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> tuple[ViewReport, ViewReport]:
    """The reports by column and by documents."""
    (by_column,) = verify(spec, resting=True)
    with monkeypatch.context() as patched:
        patched.setattr(SourceTruth, "batches", lambda _: None)
        (by_document,) = verify(spec, resting=True)
    return without_position(by_column), without_position(by_document)


def without_position(report: ViewReport) -> ViewReport:
    """The log goes on by itself, so only whether there is a position is compared."""
    assert report.equal is (report.verified_through is not None)
    return replace(report, verified_through=report.verified_through and Lsn(1))


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


@pytest.mark.parametrize("keys", KEYS)
def test_the_report_is_the_one_that_documents_give(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes: list[ColumnPass],
    keys: str,
) -> None:
    draw = random.Random(keys)  # noqa: S311
    with psycopg.connect(database, autocommit=True) as connection:
        plan = make(connection, keys, draw, 120)
        spec = spec_of(database, plan, tmp_path)
        changes = fill(spec)

        by_column, by_document = both(spec, monkeypatch)

        assert by_document == by_column
        assert (120, True) == (by_column.rows, by_column.equal)

        damage(connection, spec, draw, changes)
        by_column, by_document = both(spec, monkeypatch)

    assert by_document == by_column
    assert 119 == by_column.rows
    assert min(by_column.missing, by_column.different, by_column.extra) >= 4
    assert 1 == by_column.duplicated
    assert [False, False] == [each.unsuited for each in passes]
    assert [0, True] == [len(passes[0].suspects), len(passes[1].suspects) < 50]


@pytest.mark.parametrize("seed", range(3))
def test_rows_columns_and_keys_that_are_left_out_are_left_out_in_both_ways(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes: list[ColumnPass],
    seed: int,
) -> None:
    """Withheld rows, quarantined keys, renamed, hidden and missing columns, times of changes."""
    draw = random.Random(seed)  # noqa: S311
    with psycopg.connect(database, autocommit=True) as connection:
        plan = make(connection, "part, id", draw, 150, RULES)
        own_schema.ensure(connection)
        connection.execute("ALTER TABLE wide RENAME note TO remark")
        columns = tuple(each for each in plan.schema.columns if each.name != "doc")
        plan = replace(
            plan,
            schema=replace(plan.schema, columns=columns),
            renamed={"note": "remark"},
            absent=frozenset({"address"}),
            left_out=tuple(each for each in plan.schema.columns if each.name == "doc"),
            times=(("first_at", ChangeTime.FIRST_COMMIT), ("read_at", ChangeTime.PROCESSING)),
            expectations=(
                Expectation("positive", "small >= 0 AND total < 100", OnFail.DROP),
                Expectation("noted", "note IS NULL OR note <> 'NULL'", OnFail.QUARANTINE),
                Expectation("counted", "paid", OnFail.WARN),
                Expectation("of no column", "1 < 2", OnFail.DROP),
                Expectation("of an absent column", "address = 'x'", OnFail.DROP),
            ),
        )
        spec = spec_of(database, plan, tmp_path)
        changes = fill(spec)
        damage(connection, spec, draw, changes)
        for change in changes[::2]:
            key = dict(zip(plan.keys, change.key, strict=True))
            connection.execute(QUARANTINE, (orjson.dumps(key).decode(),))

        by_column, by_document = both(spec, monkeypatch)

    assert by_document == by_column
    assert 149 == by_column.rows + by_column.withheld
    assert min(by_column.withheld, by_column.rows) > 20
    assert by_column.quarantined > 0
    assert [False] == [each.unsuited for each in passes]


@pytest.mark.parametrize("value", UNHOLDABLE)
def test_a_value_that_no_table_has_is_compared_as_a_document(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    passes: list[ColumnPass],
    value: str,
) -> None:
    draw = random.Random(value)  # noqa: S311
    with psycopg.connect(database, autocommit=True) as connection:
        plan = make(connection, "id", draw, 100)
        spec = spec_of(database, plan, tmp_path)
        changes = fill(spec)
        damage(connection, spec, draw, changes)
        connection.execute(f"UPDATE wide SET {value} WHERE id = 60".encode())  # noqa: S608

        by_column, by_document = both(spec, monkeypatch)

    assert by_document == by_column
    assert "60" in {finding.key for finding in by_column.findings}
    assert [(True, 0)] == [(each.unsuited, each.rows) for each in passes]  # it began again


def test_a_table_with_the_types_of_earlier_columns_is_compared_as_documents(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: list[ColumnPass]
) -> None:
    """The job has not yet followed a change of the source's columns."""
    draw = random.Random(1)  # noqa: S311
    with psycopg.connect(database, autocommit=True) as connection:
        plan = make(connection, "id", draw, 100)
        fill(spec_of(database, plan, tmp_path))
        connection.execute("ALTER TABLE wide ALTER total TYPE numeric(14,3)")
        connection.execute("ALTER TABLE wide ALTER small TYPE integer")
        schema = catalog.describe(connection, [WIDE])[WIDE]

        spec = spec_of(database, replace(plan, schema=schema), tmp_path)
        by_column, by_document = both(spec, monkeypatch)

    assert by_document == by_column
    assert by_column.different > 50  # the decimals of a numeric belong to its value
    assert [True] == [each.unsuited for each in passes]


@pytest.mark.parametrize("seed", range(2))
def test_rows_that_change_between_the_statements_are_not_wrong(
    database: str, tmp_path: Path, passes: list[ColumnPass], seed: int
) -> None:
    """Each change is in the table at once, so what is wrong at the end is only what was damaged."""
    draw = random.Random(seed)  # noqa: S311
    with (
        psycopg.connect(database, autocommit=True) as connection,
        source_rows.session_of(database) as reader,
        closing(WarehouseSink(tmp_path / "tables")) as sink,
    ):
        plan = make(connection, "part, id", draw, 200)
        spec = spec_of(database, plan, tmp_path)
        (part, number), *moving = (each.key for each in draw.sample(fill(spec), 60))
        connection.execute(
            "UPDATE wide SET note = 'x', paid = NULL WHERE part = %s AND id = %s", (part, number)
        )
        rows, reports = source_rows.SourceRows(reader, plan), []
        steps = JobVerification(spec, Throttle(), resting=True).steps(plan, [Store.TABLE], reports)
        for step, _ in enumerate(steps):
            if step % 3 or not moving:
                continue
            gone, updated, added = moving.pop(), moving.pop(), 1000 + step
            connection.execute("DELETE FROM wide WHERE part = %s AND id = %s", gone)
            connection.execute("UPDATE wide SET small = 77 WHERE part = %s AND id = %s", updated)
            insert(connection, "part, id", draw, range(added, added + 1))
            found = connection.execute("SELECT part FROM wide WHERE id = %s", (added,)).fetchall()
            now = [tuple(map(str, key)) for key in (updated, (found[0][0], added))]
            version = VERSION + 1 + step
            changes = [change_of(plan, row, version) for row in rows.of_keys(now)]
            sink.apply(plan, [*changes, RowChange(gone, version, None, 1)])
    (report,) = reports

    assert [False] == [each.unsuited for each in passes]
    assert (0, 0, 1) == (report.missing, report.extra, report.different)
    assert report.verified_through is None
    (finding,) = report.findings
    assert key_text([part, number]) == finding.key
    assert "note" in finding.columns
    assert len(passes[0].suspects) > 1
