"""When a mirror's row was inserted, told beside its last change: in whatever order records come."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdc.change_event import ChangeEvent
from cdc.table import Column, ColumnKind, TableSchema
from eventstore.serialization.registry import EventTypes
from projections.archive import replay
from projections.archive.task import ReplayTarget
from projections.changes.applier import TaskApplier
from projections.changes.record import Record
from projections.changes.task_outcome import BlockedKeys
from projections.definition import codec
from projections.definition.columns import BEGUN_COLUMN
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.definition.mirror import events, mirror, source
from projections.definition.operators.lateness import Late
from projections.definition.operators.measures import Measures
from projections.definition.operators.windows import Tumbling
from projections.definition.views import ChangeTime, MirrorView, Store
from projections.errors import DeclarationError, PlanError
from projections.planning.view_plan import plan_views
from projections.stores.delta.table_sink import TableSink
from tests.fix_archive import archived
from tests.fix_log import PLAN, TABLE, TOPIC, Source, envelope, groups, numbered, sources
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.planning.view_plan import ViewPlan
    from tests.fix_seeds import Rotation

pytestmark = pytest.mark.integration

TIMES = (("came_at", ChangeTime.FIRST_COMMIT), ("committed_at", ChangeTime.COMMIT))
FIRST = replace(PLAN, to=frozenset([Store.TABLE]), times=TIMES)
BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
DRAFTS = Expectation("no draft", "note <> 'draft'", OnFail.DROP)
"""A view with it leaves out rows that are there at the source."""


def committed(lsn: int) -> datetime:
    """When the change at a position was committed."""
    return BEGINNING + timedelta(microseconds=1000 + lsn)


class Told(NamedTuple):
    """A record of the one key: what it does, where it stands, and what its row says."""

    op: str
    lsn: int
    note: str = ""

    @property
    def record(self) -> Record:
        row = None if self.op == "d" else {"id": 1, "note": self.note or self.op, "big": None}
        value = envelope(self.op, self.lsn, row, key=1, order=1)
        return Record(b'{"id":1}', value, "1", 0, 0)


class Table:
    """A view's table, given records batch by batch."""

    def __init__(self, root: Path, plan: ViewPlan = FIRST) -> None:
        self._root, self._plan = root, plan
        TableSink(root).prepare(plan)

    def take(self, records: Iterable[Record]) -> None:
        delivery = TaskApplier(
            [self._plan], partial(TableSink, self._root), {"things": BlockedKeys()}
        )
        delivery.take(TOPIC, list(records))
        delivery.finish()
        assert [] == delivery.waiting

    def sweep(self, below: int) -> None:
        TableSink(self._root).sweep(self._plan, below)

    @property
    def rows(self) -> dict[int, Mapping[str, Any]]:
        found = DeltaTable(str(self._root / self._plan.name)).to_pyarrow_table().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row for row in found}


def expected(told: Sequence[Told]) -> tuple[str, object] | None:
    """What the row says at last, and when it was inserted; from what was told, in no order."""
    newest = max(told, key=lambda each: each.lsn, default=Told("d", 0))
    begun = [each for each in told if each.op in ("c", "d")]
    if newest.op == "d" or newest.note == "draft":
        return None
    first = max(begun, key=lambda each: each.lsn, default=Told("d", 0))
    return newest.note or newest.op, committed(first.lsn) if first.op == "c" else None


LIVES = {
    "updated": [Told("c", 8), Told("u", 16, "one"), Told("u", 24, "two")],
    "inserted anew": [Told("c", 8), Told("d", 16), Told("c", 24), Told("u", 32)],
    "read before the log came to it": [Told("r", 33), Told("c", 8), Told("d", 16), Told("c", 24)],
    "inserted anew unseen": [Told("c", 8), Told("d", 16), Told("r", 33), Told("u", 40)],
    "found to be gone": [Told("c", 8), Told("d", 17), Told("c", 24), Told("r", 25)],
    "left out meanwhile": [Told("c", 8), Told("u", 16, "draft"), Told("u", 24), Told("r", 33)],
    "left out at first": [Told("c", 8, "draft"), Told("u", 16), Told("d", 24), Told("u", 32)],
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_the_first_commit_is_that_of_the_newest_insert_in_whatever_order_records_come(
    tmp_path: Path, life: list[Told], rotation: Rotation
) -> None:
    plan = replace(FIRST, expectations=(DRAFTS,))
    for number, order in enumerate(rotation.of(permutations(life))):
        table = Table(tmp_path / str(number), plan)
        for place, each in enumerate(order):
            table.take([each.record])
            row = table.rows.get(1)

            known = None if row is None else (row["note"], row["came_at"])
            assert expected(order[: place + 1]) == known, order[: place + 1]


@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_duplicates_and_the_bounds_of_batches_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    told, lsn = [], 8
    for op in data.draw(st.lists(st.sampled_from(["live", "live", "gone", "read"]), max_size=8)):
        there = bool(told) and told[-1].op != "d"
        note = data.draw(st.sampled_from(["", "draft", str(lsn)]))
        if op == "gone" and there:
            told.append(Told("d", lsn))
        elif op == "read" and there:
            told.append(Told("r", lsn + 1, told[-1].note))
        elif op == "live":
            told.append(Told("u" if there else "c", lsn, note))
        lsn += 8
    lost = data.draw(st.integers(0, len(told)))  # what is before it, nobody has captured
    told = told[lost:]
    given_twice = data.draw(st.lists(st.sampled_from(told), max_size=4)) if told else []
    order = data.draw(st.permutations([*told, *given_twice]))
    table = Table(tmp_path_factory.mktemp("table"), replace(FIRST, expectations=(DRAFTS,)))

    while order:
        size = data.draw(st.integers(1, len(order)))
        table.take([each.record for each in order[:size]])
        order = order[size:]

    row = table.rows.get(1)
    known = None if row is None else (row["note"], row["came_at"])
    assert expected(told) == known


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(log=sources(whole_rows=True), data=st.data())
def test_a_view_that_follows_and_one_that_is_rebuilt_say_what_the_log_says(
    tmp_path_factory: pytest.TempPathFactory, log: Source, data: st.DataObject
) -> None:
    """With reads that run ahead of the log, moved and swapped keys, truncates, and a gap."""
    if data.draw(st.booleans()):
        order = data.draw(st.randoms(use_true_random=False))
        log.lose(groups(data.draw), order)
        log.together(groups(data.draw), order)
    records = read_meanwhile(log, data)
    root = tmp_path_factory.mktemp("tables")
    live, rest = Table(root / "live"), records
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        live.take(rest[:size])
        rest = rest[size:]
    archived(root / "archive", TOPIC, records)
    rebuilt = Table(root / "rebuilt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "PART_RECORDS", data.draw(st.integers(1, 9)))
        replay.replay(
            root / "archive", [ReplayTarget((FIRST,), partial(TableSink, root / "rebuilt"))]
        )

    assert {key: row["came_at"] for key, row in live.rows.items()} == of_log(log, live.rows)
    assert live.rows == rebuilt.rows


def read_meanwhile(log: Source, data: st.DataObject) -> list[Record]:
    """The topic of a source, read at some moments, whose rows come sooner or later."""
    records = list(log.topic)
    # whoever captures a source anew finds nothing more of what was captured before
    since = sum(record.epoch != str(log.epoch) for record in records)
    for _ in range(data.draw(st.integers(0, 2))):
        began = data.draw(st.integers(0, len(log.states) - 1))
        for row in log.read(began, data.draw(st.integers(began, len(log.states) - 1))):
            records.insert(data.draw(st.integers(since, len(records))), row)
    if data.draw(st.booleans()):
        again = data.draw(st.integers(0, len(records) - 1))
        records += records[again:]
    return numbered(records)


def of_log(log: Source, rows: Iterable[int]) -> dict[int, datetime | None]:
    """When rows were inserted by the word of all that was captured."""
    newest: dict[object, tuple[int, str, int]] = {}
    for record in log.topic:
        event = ChangeEvent.parse(record.key, record.value or b"", int(record.epoch or 0))
        if event.operation in {"c", "d", "t"}:
            key = None if record.key is None else orjson.loads(record.key)["id"]
            found = event.position.version, str(event.operation), event.position.lsn.value
            newest[key] = max(found, newest.get(key, found))
    emptied = newest.get(None, (0, "t", 0))
    last = {key: max(newest.get(key, emptied), emptied) for key in rows}
    return {key: committed(lsn) if op == "c" else None for key, (_, op, lsn) in last.items()}


def test_what_a_read_brings_keeps_the_time_of_a_row_that_is_there(tmp_path: Path) -> None:
    """The insert may come after the read's row, even when the read's position was swept."""
    inserted, read = Told("c", 8), Told("r", 33)
    before, behind = Table(tmp_path / "before"), Table(tmp_path / "behind")

    before.take([inserted.record])
    before.take([read.record])
    before.sweep(1 << 56 | 33)
    behind.take([read.record])
    behind.sweep(1 << 56 | 33)
    unseen = behind.rows[1]["came_at"]
    behind.take([inserted.record])

    assert unseen is None
    assert committed(8) == before.rows[1]["came_at"] == behind.rows[1]["came_at"]
    assert "r" == before.rows[1]["note"] == behind.rows[1]["note"]


def test_a_row_of_a_key_that_it_moved_to_is_a_new_one(tmp_path: Path) -> None:
    log = Source()
    log.together([[("insert", 1)]], Random(1))  # noqa: S311  # an order of its own
    log.together([[("move", 1, 2)]], Random(1))  # noqa: S311
    log.together([[("note", 2)]], Random(1))  # noqa: S311
    table = Table(tmp_path)

    for record in numbered(log.topic)[:1], numbered(log.topic)[1:3], numbered(log.topic)[3:]:
        table.take(record)

    (row,) = table.rows.values()
    moved = ChangeEvent.parse(log.topic[2].key, log.topic[2].value or b"", 1)
    assert (2, committed(moved.position.lsn.value)) == (row["id"], row["came_at"])
    assert row["big"] is not None


def test_records_that_are_left_to_a_read_still_tell_when_rows_were_inserted(
    tmp_path: Path,
) -> None:
    """As where a view is rebuilt after its table got another shape, and was read again."""
    plan = replace(FIRST, left_to_read=1 << 56 | 20)
    told = [Told("c", 8), Told("u", 16, "of another shape"), Told("r", 33)]
    for number, order in enumerate(permutations(told)):
        table = Table(tmp_path / str(number), plan)
        for each in order:
            table.take([each.record])

        assert ("r", committed(8)) == (table.rows[1]["note"], table.rows[1]["came_at"])


def test_a_change_that_waits_brings_its_insert_when_it_is_tried_again(tmp_path: Path) -> None:
    """Both came in one batch, and the store cannot hold the later one yet."""
    inserted, updated = Told("c", 8).record, Told("u", 16).record
    spoilt = updated._replace(value=(updated.value or b"").replace(b'"note":"u"', b'"note":7'))
    TableSink(tmp_path).prepare(FIRST)
    delivery = TaskApplier([FIRST], partial(TableSink, tmp_path), {"things": BlockedKeys()})

    delivery.take(TOPIC, numbered([inserted, spoilt]))
    delivery.finish()

    assert [0, 1] == [each.record.offset for each in delivery.waiting]
    assert {} == Table(tmp_path).rows


def test_a_table_without_a_key_has_the_commit_of_each_row(tmp_path: Path) -> None:
    schema = TableSchema(TABLE.table, TABLE.columns, ())
    view = MirrorView("things", "shop", TABLE.table, (), FIRST.to, times=TIMES)
    (plan,) = plan_views([view], {TABLE.table: schema})
    table = Table(tmp_path, plan)

    table.take([Told("c", 8).record, Told("r", 17).record])

    assert [committed(8), None] == [row["came_at"] for row in by_version(tmp_path)]
    assert BEGUN_COLUMN not in by_version(tmp_path)[0]


def test_names_of_columns_may_be_anything(tmp_path: Path) -> None:
    strange = ('a."b" c', "sel'ect", "🙂", "Größe X")
    columns = (*TABLE.columns, *(Column(name, ColumnKind.TEXT, "text") for name in strange))
    plan = replace(FIRST, schema=TableSchema(TABLE.table, columns, TABLE.key))
    table = Table(tmp_path, plan)

    for op, lsn in (("r", 33), ("c", 8), ("u", 40)):
        row = {"id": 1, "note": op, "big": None} | dict.fromkeys(strange, op)
        value = envelope(op, lsn, row, key=1, order=1)
        table.take([Record(b'{"id":1}', value, "1", 0, 0)])

    (row,) = table.rows.values()
    assert ({*"u"}, committed(8)) == ({row[name] for name in strange}, row["came_at"])


def by_version(root: Path) -> list[Mapping[str, Any]]:
    found = DeltaTable(str(root / "things")).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: row["_version"])


def test_only_a_mirrors_table_has_a_first_commit() -> None:
    shop = source("shop", tables=["public.things"], eventstore=True)
    every = shop.events("order.noted", registry=EventTypes())

    with pytest.raises(DeclarationError, match="only one commit"):
        events("noted", every, to=["table"], times={"came_at": "first_commit"})
    with pytest.raises(DeclarationError, match="times needs a mirror"):
        mirror("things", shop.things, to=["search"], times={"came_at": "first_commit"})
    assert {"came_at"} == FIRST.times_of_delivery
    assert () == FIRST.in_store(Store.CACHE).times
    kept = mirror("things", shop.things, times={"came_at": "first_commit"})
    assert kept == codec.decoded(codec.encoded(kept))


def test_a_column_may_not_have_the_name_of_what_is_kept_beside_it() -> None:
    column = Column(BEGUN_COLUMN, ColumnKind.INTEGER, "bigint")
    schema = TableSchema(TABLE.table, (*TABLE.columns, column), TABLE.key)
    view = MirrorView("things", "shop", TABLE.table, (), FIRST.to)

    with pytest.raises(PlanError, match=f"{BEGUN_COLUMN} is reserved"):
        plan_views([view], {TABLE.table: schema})


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_row_that_is_updated_after_its_window_stays_in_it_by_its_first_commit(
    tmp_path: Path, spark: SparkSession
) -> None:
    """By the commit of its last change it leaves the window that it was in, and is late there."""
    from projections.incremental.spark.table_reader import TableVersions

    at = Column("at", ColumnKind.TIMESTAMPTZ, "timestamp with time zone")
    plan = replace(FIRST, schema=TableSchema(TABLE.table, (*TABLE.columns, at), TABLE.key))
    table, sink = Table(tmp_path, plan), TableSink(tmp_path)
    for op, lsn in (("c", 8), ("u", 120_000_008)):  # two minutes later
        row = {"id": 1, "note": op, "big": None, "at": "1970-01-01T00:00:00Z"}
        table.take([Record(b'{"id":1}', envelope(op, lsn, row, key=1, order=1), "1", 0, 0)])
    things = TableVersions(spark, tmp_path).rows("things", sink.version(plan))
    things.createOrReplaceTempView("things")
    window = Tumbling("at", "1 minute")

    def counted(arrived: str) -> list[tuple[int, int]]:
        late = Late(arrived, count="late")
        text = late.select(window, "things", (), Measures(count="rows"), "")
        return [(row["rows"], row["late"]) for row in spark.sql(text).collect()]

    assert {"id", "note", "big", "at", "came_at", "committed_at"} == {*things.columns}
    assert "u" == things.collect()[0]["note"]
    assert [(1, 0)] == counted("came_at")
    assert [(0, 1)] == counted("committed_at")
