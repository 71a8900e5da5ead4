"""A view's table filled straight from the source, and handed over to the stream."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable

from cdc.position import ChangePosition
from cdc.postgres import catalog, own_schema, session, table_size
from cdc.snapshot import read_point, reads
from cdc.snapshot.progress import KeyRange, SnapshotProgress
from cdc.snapshot.read_point import ReadPoint
from cdc.table import TableName
from projections.changes.row_change import RowChange
from projections.definition.views import ChangeTime, Store
from projections.errors import UnholdableValueError
from projections.job import initial_load
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import ViewPlan
from projections.stores.delta import bulk_load
from projections.stores.delta.bulk_load import Load
from projections.stores.delta.table_sink import TableSink
from projections.verification import source_rows

if TYPE_CHECKING:
    from pathlib import Path

    from cdc.lsn import Lsn

pytestmark = pytest.mark.integration

WIDE = TableName("public", "wide")
CREATE = """
CREATE TYPE mood AS ENUM ('sad', 'ok "fine", really');
CREATE TABLE wide (
    id bigint, part text, small smallint, paid boolean, total numeric(12,2), digits numeric,
    weight double precision, light real, note text, code char(6), token uuid, doc json, extra jsonb,
    day date, at_time time, noted_at timestamp, placed_at timestamptz, lasted interval,
    blob bytea, tags text[], span int4range, feeling mood, address inet, letters varchar(20),
    PRIMARY KEY (id, part)
) PARTITION BY LIST (part);
CREATE TABLE wide_a PARTITION OF wide FOR VALUES IN ('a');
CREATE TABLE wide_rest PARTITION OF wide DEFAULT PARTITION BY HASH (id);
CREATE TABLE wide_rest_0 PARTITION OF wide_rest FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE wide_rest_1 PARTITION OF wide_rest FOR VALUES WITH (MODULUS 2, REMAINDER 1);
INSERT INTO wide
SELECT g, (ARRAY['a', 'b', 'c,"'])[1 + g % 3], g % 100, g % 2 = 0, g / 100.0, g / 7.0, g / 3.0,
       g / 3.0, E'søster: \\\\ " ''\\n\\r\\n,\\t🚲' || g, 'x', gen_random_uuid(),
       '{"a": 1.0, "a": 9007199254740993}', '{"b": [1, null]}', date '1600-02-29' + (g * 100),
       time '23:59:59.5', timestamp '1969-12-31 23:59:59.000001' + g * interval '1 second',
       timestamptz '2026-01-01 00:00:00.123456+02' + g * interval '1 day', interval '1 mon -2 days',
       decode(lpad(to_hex(g), 400, '0'), 'hex'), ARRAY['x', NULL, '', 'a"b'], int4range(1, g + 1),
       'ok "fine", really', '10.0.0.1/8', repeat('z', g % 20)
  FROM generate_series(1, 3000) AS g;
INSERT INTO wide (id, part) VALUES (0, 'all NULL'), (-1, '');
INSERT INTO wide (id, part, weight, light, note, blob, letters)
VALUES (-2, 'odd', 'NaN', '-Infinity', '', '', ''),
       (-3, '\\N', '-0', 'Infinity', 'NULL', '\\x00', ' '),
       (-4, '\\.', 1e300, 1e-30, '\\.', NULL, NULL);
ANALYZE
"""


@pytest.fixture
def plan(database: str) -> ViewPlan:
    with session.connect(database) as connection:
        connection.execute(CREATE.encode())
        schema = catalog.describe(connection, [WIDE])[WIDE]
    return ViewPlan("wide", "t", "t.public.wide", schema, schema.key, frozenset({Store.TABLE}))


def placed(database: str) -> Lsn:
    """A position that has been reached."""
    with session.connect(database) as connection:
        root = read_point.oid(connection, WIDE)
        assert root is not None
        point = ReadPoint(connection, root)
        assert point.reached()
    return point.position


def stored(root: Path, plan: ViewPlan) -> dict[Any, Any]:
    sink = TableSink(root)
    return {(row["id"], row["part"]): dict(row) for row in sink.documents(plan)}


def wanted(database: str, plan: ViewPlan) -> dict[Any, Any]:
    with source_rows.snapshot(database) as connection:
        return {(row["id"], row["part"]): row for row in source_rows.documents(connection, plan)}


def test_every_value_is_there_as_the_stream_would_have_brought_it(
    database: str, plan: ViewPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_load, "_BLOCK_BYTES", 100_000)
    version = ChangePosition.of_read(1, placed(database)).version
    load = Load(plan, version, database, tmp_path, workers=3)

    assert 3005 == bulk_load.load(load)

    assert wanted(database, plan) == stored(tmp_path, plan)
    assert bulk_load.load(load) is None  # there is a table: it stays as it is


def test_the_stream_goes_on_from_the_position_of_the_load(
    database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    version = ChangePosition.of_read(1, placed(database)).version
    bulk_load.load(Load(plan, version, database, tmp_path))
    sink = TableSink(tmp_path)
    row = dict.fromkeys(plan.schema.by_name) | {"id": 0, "part": "all NULL"}

    def change(key: int, part: str, at: int, note: str | None) -> RowChange:
        values = None if note is None else row | {"id": key, "part": part, "note": note}
        return RowChange((key, part), at, values, 1)

    older = sink.apply(plan, [change(0, "all NULL", version - 9, "older")])
    read = sink.apply(
        plan, [change(0, "all NULL", version, "read"), change(7777, "x", version, "")]
    )
    newer = sink.apply(
        plan, [change(0, "all NULL", version + 9, "newer"), change(-1, "", version + 9, None)]
    )
    swept = sink.sweep(plan, version)

    assert [(0, 0, 1), (1, 1, 0)] == [(a.upserted, a.deleted, a.stale) for a in (older, newer)]
    assert (0, 0) == (read.upserted, read.deleted)  # what the read sends is there, or went since
    found = stored(tmp_path, plan)
    assert (3004, "newer", 0) == (len(found), found[0, "all NULL"]["note"], swept)


def test_a_row_that_was_loaded_has_its_first_commit_once_the_stream_comes_to_its_insert(
    database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    timed = replace(plan, times=(("came_at", ChangeTime.FIRST_COMMIT),))
    version = ChangePosition.of_read(1, placed(database)).version
    bulk_load.load(Load(timed, version, database, tmp_path))
    sink, (key, other) = TableSink(tmp_path), list(stored(tmp_path, plan))[:2]

    for each, at, begun in (key, version - 9, version - 9), (other, version + 9, 0):
        row = dict.fromkeys(plan.schema.by_name) | dict(zip(plan.keys, each, strict=True))
        at_us = 1000 if begun else 0
        sink.apply(timed, [RowChange(each, at, row, 1000, begun=begun, begun_at_us=at_us)])

    found = DeltaTable(str(tmp_path / plan.name)).to_pyarrow_table().to_pylist()
    known = {(row["id"], row["part"]): row["came_at"] for row in found if row["came_at"]}
    assert {key: datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC)} == known
    assert 3005 == len(found)


UNHOLDABLE = (
    "at_time = '24:00'",
    "noted_at = 'infinity'",
    "day = '0044-03-15 BC'",
    "total = 'NaN'",
)


def test_a_value_that_no_table_holds_leaves_no_table(
    database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    for value in UNHOLDABLE:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "UPDATE wide SET at_time = NULL, noted_at = NULL, day = NULL, total = NULL"
                " WHERE id = 5"
            )
            connection.execute(f"UPDATE wide SET {value} WHERE id = 5".encode())  # noqa: S608

        with pytest.raises(UnholdableValueError) as refused:
            bulk_load.load(Load(plan, 1 << 56, database, tmp_path))

        assert [".wide.lock"] == [path.name for path in tmp_path.iterdir()]
        assert "5" not in f"{refused.value.message}{refused.value.detail}"


KILLED = """
import os, pickle, sys
from projections.stores.delta import bulk_load
real, seen = bulk_load._batch, []
def once(load, text):
    seen.append(1)
    if len(seen) == 3:
        os.kill(os.getpid(), 9)
    return real(load, text)
bulk_load._batch, bulk_load._BLOCK_BYTES = once, 100_000
bulk_load.load(pickle.load(sys.stdin.buffer))
"""


def test_a_killed_load_leaves_no_table_and_the_next_one_begins_anew(
    database: str, plan: ViewPlan, tmp_path: Path
) -> None:
    import pickle

    load = Load(plan, 1 << 56, database, tmp_path)

    done = subprocess.run(
        [sys.executable, "-c", KILLED], input=pickle.dumps(load), check=False, timeout=60
    )

    assert -9 == done.returncode
    assert {".wide.loading", ".wide.lock"} == {path.name for path in tmp_path.iterdir()}
    assert 3005 == bulk_load.load(load)
    assert {".wide.lock", "wide", "wide.deleted"} == {path.name for path in tmp_path.iterdir()}


def test_tables_that_cannot_be_large_are_not_waited_for(
    database: str, plan: ViewPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JobSpec(JobConfig("t", "", database, "", tmp_path, "", "", ()), (plan,))
    monkeypatch.setattr(initial_load, "BEGIN_WAIT_S", 3_600.0)
    parts = TableName("public", "parts")
    with session.connect(database) as connection:
        own_schema.ensure(connection)
        reads.ask_initial(connection, "t", 1, [WIDE])  # nothing reads it: it never begins
        connection.execute(
            "CREATE TABLE parts (id int) PARTITION BY LIST (id);"
            "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);"
            "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);"
            "INSERT INTO parts SELECT 1 + n % 2 FROM generate_series(1, 5000) n"
        )
        rows = table_size.rows_at_most(connection, [WIDE, parts, TableName("public", "gone")])
    assert rows[WIDE] >= 3005
    assert rows[parts] >= 5000
    assert 0 == rows[TableName("public", "gone")]
    least = rows[WIDE] + 1
    spec = replace(spec, config=replace(spec.config, load_rows_min=least))

    assert {} == initial_load.load_new(spec)


def test_a_new_view_of_a_large_table_is_loaded_once_a_read_of_it_has_begun(
    database: str, plan: ViewPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = JobSpec(JobConfig("t", "", database, "", tmp_path, "", "", ()), (plan,))
    with session.connect(database) as connection:
        own_schema.ensure(connection)
        reads.ask_initial(connection, "t", 1, [WIDE])
        (read,) = reads.open_reads(connection, "t", 1)
        monkeypatch.setattr(initial_load, "BEGIN_WAIT_S", 0.0)
        assert {} == initial_load.load_new(spec)  # nobody reads
        progress = SnapshotProgress("", (), (KeyRange(),))
        assert reads.begin(connection, read, placed(database), progress, 3005)
        assert {} == initial_load.load_new(spec)  # the stream makes short work of it
    spec = replace(spec, config=replace(spec.config, load_rows_min=3000))

    loaded, again = initial_load.load_new(spec), initial_load.load_new(spec)

    assert ({"wide": 3005}, {}) == (loaded, again)
    assert wanted(database, plan) == stored(tmp_path / "tables", plan)
