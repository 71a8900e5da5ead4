"""A mirror in the warehouse is compared by column, with the report that its documents give."""

from __future__ import annotations

import random
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest

from cdc.lsn import Lsn
from cdc.postgres import catalog, own_schema
from projections.changes.documents import key_text
from projections.changes.row_change import RowChange
from projections.common.throttle import Throttle
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.views import ChangeTime, Store
from projections.stores.delta import copy_format
from projections.stores.delta.sink import WarehouseSink
from projections.verification import job_pass, source_batches, source_rows
from projections.verification.column_pass import ColumnPass
from projections.verification.truth import SourceTruth
from projections.verification.verify import JobVerification, verify
from tests.support.wide_table import (
    KEYS,
    RULES,
    UNHOLDABLE,
    VERSION,
    WIDE,
    change_of,
    damage,
    fill,
    insert,
    make,
    spec_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from projections.planning.job_spec import JobSpec
    from projections.verification.report import ViewReport

pytestmark = pytest.mark.integration

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

    monkeypatch.setattr(job_pass, "ColumnPass", kept)
    return made


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
                Expectation("of an absent column", "lower(address) = 'x'", OnFail.DROP),
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
