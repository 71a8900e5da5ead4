"""A table that is loaded under several snapshots, while its rows change and move between them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.postgres import catalog, session
from cdc.table import TableName
from projections.changes.row_change import RowChange
from projections.definition.views import Store
from projections.errors import LoadFailedError, ReplayStoppedError
from projections.job import bulk_load
from projections.job.bulk_load import Load
from projections.planning.job_config import JobConfig
from projections.planning.view_plan import ViewPlan
from projections.stores.delta import source_copy
from projections.stores.delta.source_copy import SourceCopy
from projections.stores.delta.table_sink import TableSink
from tests.fix_seeds import examples
from tests.fix_spark import UNCOMPILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

THINGS = TableName("public", "things")
ROWS, PIECES, BLOCKS_OF_PIECE = 28, 4, 1
CREATE = """
CREATE TABLE things (id int PRIMARY KEY, note text, big text);
ALTER TABLE things ALTER big SET STORAGE EXTERNAL;
INSERT INTO things SELECT n, rpad('', 900, 'n'), rpad('', 3000, 'b')
  FROM generate_series(1, 28) n;
"""
VERSION = 7 << 56
_STEP = 16

KEYS = st.integers(1, ROWS + 4)
KINDS = st.sampled_from(["note", "note", "big", "delete", "insert"])
STEPS = st.lists(st.one_of(st.tuples(KINDS, KEYS), st.just(("vacuum", 0))), max_size=12)


@dataclass
class Things:
    """The table, and the changes that its log has."""

    connection: psycopg.Connection[Any]
    changes: list[RowChange] = field(default_factory=list)

    def begin(self) -> None:
        self.connection.execute(b"DROP TABLE IF EXISTS things;" + CREATE.encode())
        self.changes.clear()

    def take(self, steps: Sequence[tuple[str, int]]) -> None:
        for kind, key in steps:
            if kind == "vacuum":  # what was freed is used again: rows move to earlier blocks
                self.connection.execute("VACUUM things")
                continue
            text = f"{kind} {len(self.changes)}".ljust(900, ".")
            done = {
                "note": "UPDATE things SET note = %(text)s WHERE id = %(key)s RETURNING *",
                "big": "UPDATE things SET note = %(text)s, big = repeat(%(text)s, 4)"
                " WHERE id = %(key)s RETURNING *",
                "delete": "DELETE FROM things WHERE id = %(key)s RETURNING *",
                "insert": "INSERT INTO things VALUES (%(key)s, %(text)s, 'new')"
                " ON CONFLICT DO NOTHING RETURNING *",
            }[kind]
            row = self.connection.execute(done.encode(), {"text": text, "key": key}).fetchone()
            if row is not None:
                self.note(kind, dict(zip(("id", "note", "big"), row, strict=True)))

    def note(self, kind: str, row: dict[str, Any]) -> None:
        at, key = VERSION + _STEP * (len(self.changes) + 1), (row["id"],)
        if kind == "delete":
            self.changes.append(RowChange(key, at, None, 1))
        elif kind == "note":  # the log has no value that is stored apart and does not change
            self.changes.append(RowChange(key, at, row | {"big": None}, 1, ("big",)))
        else:
            self.changes.append(RowChange(key, at, row, 1))

    def rows(self) -> list[tuple[Any, ...]]:
        return self.connection.execute("SELECT * FROM things ORDER BY id").fetchall()


@pytest.fixture
def things(database: str) -> Iterator[Things]:
    with psycopg.connect(database, autocommit=True) as connection:
        made = Things(connection)
        made.begin()
        yield made


@pytest.fixture
def load(database: str, things: Things, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """A load of one piece under each snapshot."""
    assert things.rows()
    monkeypatch.setattr(source_copy, "PIECE_BYTES", 8192 * BLOCKS_OF_PIECE)
    with session.connect(database) as connection:
        schema = catalog.describe(connection, [THINGS])[THINGS]
    plan = ViewPlan("things", "t", "t.public.things", schema, ("id",), frozenset({Store.TABLE}))
    source = SourceCopy(plan, VERSION, database)
    return Load(source, tmp_path / "tables", connections=1, snapshot_s=0.0)


def before_each_snapshot(patch: pytest.MonkeyPatch, do: Callable[[int], object]) -> list[int]:
    """Does something before each snapshot of a load; returns their numbers, in the end."""
    opened, seen = SourceCopy.session, list[int]()

    def session_of(source: SourceCopy, snapshot: str | None = None) -> Any:
        if snapshot is None:
            do(len(seen))
            seen.append(len(seen))
        return opened(source, snapshot)

    patch.setattr(SourceCopy, "session", session_of)
    return seen


def delivered(load: Load, things: Things) -> list[tuple[Any, ...]]:
    """The rows of the view's table once the stream has brought the changes, too.

    A change waits if the table lacks a row of its key, which is right if that was deleted since.
    """
    sink = TableSink(load.root)
    for place, change in enumerate(things.changes):
        if sink.apply(load.source.plan, [change]).refused:
            later = [each for each in things.changes[place:] if each.key == change.key]
            assert any(each.row is None for each in later)
    rows = DeltaTable(str(load.root / "things")).to_pyarrow_table().to_pylist()
    return sorted((row["id"], row["note"], row["big"]) for row in rows)


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(STEPS, min_size=PIECES + 1, max_size=PIECES + 1))
def test_the_stream_completes_what_several_snapshots_have(
    spark: SparkSession, load: Load, things: Things, steps: list[list[tuple[str, int]]]
) -> None:
    things.begin()
    with pytest.MonkeyPatch.context() as patch:
        own = replace(load, root=load.root / str(len(list(load.root.glob("*")))))
        own.root.mkdir(parents=True)
        seen = before_each_snapshot(
            patch, lambda number: things.take(steps[number] if number < PIECES else [])
        )
        bulk_load.load(spark, own)
    things.take(steps[-1])

    assert len(seen) >= PIECES
    assert things.rows() == delivered(own, things)


def test_rows_that_moved_without_a_change_are_copied_from_the_beginning(
    spark: SparkSession, load: Load, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.root.mkdir()
    things.take([("delete", key) for key in range(1, ROWS, 2)])

    def rewritten(number: int) -> None:
        if number == 2:
            things.connection.execute("VACUUM FULL things")

    seen = before_each_snapshot(monkeypatch, rewritten)

    bulk_load.load(spark, load)

    assert len(seen) > 3
    assert things.rows() == delivered(load, things)


def test_a_load_ends_if_rows_move_again_and_again(
    spark: SparkSession, load: Load, things: Things, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.root.mkdir()
    before_each_snapshot(
        monkeypatch,
        lambda number: (
            things.connection.execute("VACUUM FULL things") and None if number % 2 else None
        ),
    )

    with pytest.raises(LoadFailedError, match="cannot be loaded"):
        bulk_load.load(spark, load)

    assert [".things.lock"] == [path.name for path in load.root.iterdir()]


KILLED = """
import os, pickle, sys
from projections.job import bulk_load
from projections.job.spark.session import start_session
from projections.stores.delta import source_copy
config, load, source_copy.PIECE_BYTES = pickle.load(sys.stdin.buffer)
under, seen = bulk_load._Run._under_snapshot, []
def second_killed(run, holder):
    if seen:
        os.kill(os.getpid(), 9)
    seen.append(holder)
    return under(run, holder)
bulk_load._Run._under_snapshot = second_killed
bulk_load.load(start_session(config), load)
"""


def test_the_load_of_a_killed_driver_is_continued(
    spark: SparkSession, load: Load, things: Things, tmp_path: Path
) -> None:
    load.root.mkdir()
    config = JobConfig.of_tables("t", tmp_path, (), driver_memory_mib=500, conf=UNCOMPILED)
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        input=pickle.dumps((config, load, source_copy.PIECE_BYTES)),
        check=False,
        timeout=120,
    )
    assert -9 == done.returncode
    assert 1 == len(list(load.root.glob(".things.loading/*/*.done")))
    things.take([("note", 1), ("delete", 2), ("insert", ROWS + 1)])
    shares: list[float] = []

    bulk_load.load(spark, load, on_progress=shares.append)

    assert shares[0] >= 1 / PIECES
    assert things.rows() == delivered(load, things)
    assert {".things.lock", "things", "things.deleted"} == {p.name for p in load.root.iterdir()}


def test_a_load_of_other_columns_begins_again(
    spark: SparkSession, load: Load, things: Things
) -> None:
    load.root.mkdir()
    stopped: list[float] = []
    with pytest.raises(ReplayStoppedError):
        bulk_load.load(spark, load, lambda: bool(stopped), stopped.append)
    assert list(load.root.glob(".things.loading/*/load.json"))
    other = replace(load, source=replace(load.source, version=VERSION + _STEP))
    shares: list[float] = []

    bulk_load.load(spark, other, on_progress=shares.append)

    assert 0 == shares[0]
    assert things.rows() == delivered(other, things)
