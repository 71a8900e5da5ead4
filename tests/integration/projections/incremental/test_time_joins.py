"""Rows enriched with what another table had when they were: its history is the real sink's."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater.reading import sql
from projections.changes.applier import TaskApplier
from projections.changes.row_change import RowChange
from projections.changes.task_outcome import BlockedKeys
from projections.definition.registry import load
from projections.definition.views import Store
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import HistoryPlan, ViewPlan
from projections.publishing.published_versions import Published
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.table_format import FEED
from tests.fix_log import KEYS, PLAN, TOPIC, Source, numbered

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.changes.record import Record

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

VIEWS = '''
from headwater import source, view

web = source("web", tables=["public.clicks", "public.people"])
view.mirror("clicks", web.clicks, keys=["id"], to=["table"])
view.mirror("people_history", web.people, scd=2)
STATE = """
    SELECT c.id, c.at, p.{column} AS said, p.valid_from, p.valid_to
      FROM clicks c
      LEFT JOIN people_history p
        ON p.id = c.person AND c.at >= p.valid_from AND (p.valid_to IS NULL OR c.at < p.valid_to)
"""
# as it was then, by all that is known; and as it was known then
view.sql("by_all", STATE + "AND p.recorded_to IS NULL", keys=["id"], to=["table"])
view.sql(
    "as_known",
    STATE + "AND c.at >= p.recorded_from AND (p.recorded_to IS NULL OR c.at < p.recorded_to)",
    keys=["id"],
    to=["table"],
)
'''
CLICKS = pa.schema(
    {
        "id": pa.int64(),
        "person": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "_version": pa.int64(),
    }
)
PEOPLE = TableSchema(
    TableName("public", "people"),
    (
        Column("id", ColumnKind.INTEGER, "integer", nullable=False),
        Column("city", ColumnKind.TEXT, "text"),
        Column("since", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    ),
    ("id",),
)
TO_TABLE = frozenset([Store.TABLE])
BY_COMMIT = replace(PLAN, name="people_history", to=TO_TABLE, history=HistoryPlan(("note",)))
BY_SEQUENCE = ViewPlan(
    *("people_history", "t", "t.public.people", PEOPLE, ("id",), TO_TABLE),
    history=HistoryPlan(("city",), "since"),
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Click = tuple[int, datetime]
"""Who, and when."""


class Web:
    """Clicks, a history, and the views that a deriver makes of them."""

    def __init__(self, spark: SparkSession, folder: Path, plan: ViewPlan, column: str) -> None:
        from projections.job.spark.session import session_of_batches
        from projections.job.tasks.derived_tables import DerivedTablesTask

        folder.mkdir()
        (folder / "views.py").write_text(VIEWS.replace("{column}", column))
        spec = JobSpec(JobConfig.of_tables("web", folder, ()))
        spec = replace(spec, derived=tuple(load(folder / "views.py").derived.values()))
        self.deriver = DerivedTablesTask(spark, session_of_batches(spark), spec)
        self.plan, self.tables = plan, spec.config.addresses.tables
        self.history = HistorySink(self.tables)
        self.history.prepare(plan)
        self.clicks: dict[int, Click] = {}
        self._published, self._lsns = Published(self.tables, "web"), count(100, 10)
        DeltaTable.create(str(self.tables / "clicks"), CLICKS, configuration=dict(FEED))

    def deliver(self, records: Sequence[Record]) -> None:
        """Takes records of the log as the job does."""
        delivery = TaskApplier([self.plan], lambda: self.history, {self.plan.name: BlockedKeys()})
        delivery.take(TOPIC, records)
        delivery.finish()
        assert [] == delivery.waiting

    def click(self, clicks: dict[int, Click | None]) -> None:
        """Inserts, changes and (None) deletes clicks."""
        table = DeltaTable(str(self.tables / "clicks"))
        rows = [
            {"id": number, "person": click and click[0], "at": click and click[1], "_version": 1}
            for number, click in clicks.items()
        ]
        given = pa.Table.from_pylist(rows, CLICKS)
        merge = table.merge(given, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_delete("s.at IS NULL").when_matched_update_all(
            "s.at IS NOT NULL"
        ).when_not_matched_insert_all("s.at IS NOT NULL").execute()
        for number, click in clicks.items():
            self.clicks.pop(number, None)
            if click is not None:
                self.clicks[number] = click

    def publish(self) -> dict[str, list[dict[str, Any]]]:
        """Has the views follow; returns their rows."""
        places = ("clicks", self.plan.name)
        versions = {name: DeltaTable(str(self.tables / name)).version() for name in places}
        version = self._published.publish(1, next(self._lsns), versions, complete=False)
        assert version is not None
        self._published.complete(version, self.deriver.derived(version))
        assert {} == self.deriver.faults
        for maintainer in self.deriver.maintainers:
            assert maintainer.explanation is not None
            assert "keyed" == maintainer.explanation.strategy
        return {name: self._read(name) for name in ("by_all", "as_known")}

    def _read(self, view: str) -> list[dict[str, Any]]:
        rows = sql.run(f"SELECT * FROM {view} ORDER BY id", self.tables).to_pylist()  # noqa: S608
        return [{name: v for name, v in row.items() if name != "_version"} for row in rows]


def said(rows: list[dict[str, Any]]) -> dict[int, Any]:
    found = {row["id"]: row["said"] for row in rows}
    assert len(found) == len(rows)
    return found


def some_clicks(random: Random, people: Sequence[int], moments: Iterable[int]) -> dict[int, Any]:
    """Some that come, change and go, at times given in microseconds."""
    times = [EPOCH + timedelta(microseconds=each) for each in moments]
    clicks: dict[int, Click | None] = {
        random.randint(1, 30): (random.choice(people), random.choice(times)) for _ in range(12)
    }
    return clicks | {random.randint(1, 30): None for _ in range(3)}


SEEDS = pytest.mark.rotating("seed", [1, 2])


@SEEDS
def test_clicks_have_what_the_log_says_of_then_in_whatever_order_it_is_delivered(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311  # chance that is repeated
    source, people = Source(whole_rows=True), list(KEYS)
    for _ in range(4):
        random.shuffle(people)
        one, other = ([step(random, own) for _ in range(4)] for own in (people[:2], people[2:]))
        source.together(
            [[("copy", *people)], one, other] if not source.rows else [one, other], random
        )
        if random.random() < 0.3:
            source.truncate()
    log = numbered(source.topic)
    web = Web(spark, tmp_path / "kept", BY_COMMIT, "note")
    shuffled = random.sample(log, len(log)) + random.sample(log, 4)
    moments = range(1000 + 0x1000 - 8, 1000 + source.lsn + 8)

    size = len(shuffled) // 4 + 1
    for place in range(0, len(shuffled), size):
        web.deliver(numbered(shuffled[place : place + size]))
        web.click(some_clicks(random, people, moments))
        delivered = shuffled[: place + size]
        kept = web.publish()
        expected = {number: noted(delivered, *click) for number, click in web.clicks.items()}
        assert expected == said(kept["by_all"]) == said(kept["as_known"])

    assert None in expected.values()
    assert 3 < len({*expected.values()})
    assert kept == replayed(spark, tmp_path, web, log)


def step(random: Random, keys: Sequence[int]) -> tuple[Any, ...]:
    kind = random.choice(["insert", "delete", "note", "note", "big", "move"])
    return (kind, *keys) if kind == "move" else (kind, random.choice(keys))


def noted(log: Iterable[Record], person: int, at: datetime) -> str | None:
    """What plain Python reads of the log: the last that was committed until then."""
    newest: tuple[int, str | None] = (0, None)
    for record in log:
        value = orjson.loads(record.value or b"")
        key = None if record.key is None else orjson.loads(record.key)["id"]
        place = value["source"]["lsn"]
        until_then = EPOCH + timedelta(microseconds=value["source"]["ts_us"]) <= at
        if key in {None, person} and until_then and place > newest[0]:
            newest = place, (value["after"] or {"note": None})["note"]
    return newest[1]


def replayed(spark: SparkSession, folder: Path, web: Web, log: Sequence[Any]) -> dict[str, Any]:
    """What the views are if the log is read from its beginning, and all are made anew."""
    anew = Web(spark, folder / "anew", web.plan, "note" if web.plan is BY_COMMIT else "city")
    if web.plan is BY_COMMIT:
        anew.deliver(log)
    else:
        anew.history.apply(anew.plan, log)
    anew.click(dict(web.clicks))
    return anew.publish()


@SEEDS
def test_clicks_have_what_held_then_by_all_that_is_known_and_what_was_known_then(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)  # noqa: S311  # chance that is repeated
    log, second = [], 100
    for version in range(1, 25):
        second += random.randint(1, 9)
        # half of them are late: they say what was so before what is known already
        since = EPOCH + timedelta(seconds=second - random.choice([0, 0, 5, 20, 60]))
        row = {"id": random.randint(1, 3), "city": random.choice(["Lund", "Oslo", "Rome"])}
        gone = random.random() < 0.2
        log.append(
            RowChange(
                (row["id"],),
                1 << 56 | 8 * version,
                None if gone else row | {"since": since},
                second * 1_000_000,
            )
        )
    web = Web(spark, tmp_path / "kept", BY_SEQUENCE, "city")
    moments = [1_000_000 * each for each in range(40, second + 5)]
    differed = False

    for place in range(0, len(log), 6):
        web.history.apply(web.plan, log[place : place + 6])
        web.click(some_clicks(random, [1, 2, 3, 4], moments))
        kept = web.publish()
        known = log[: place + 6]
        by_all = {n: city(known, *click, known_at=None) for n, click in web.clicks.items()}
        as_known = {n: city(known, *click, known_at=click[1]) for n, click in web.clicks.items()}
        assert by_all == said(kept["by_all"])
        assert as_known == said(kept["as_known"])
        differed |= by_all != as_known

    assert differed
    assert {"Lund", "Oslo", "Rome", None} == {*by_all.values()}
    assert kept == replayed(spark, tmp_path, web, log)


def city(
    log: Iterable[RowChange], person: int, at: datetime, known_at: datetime | None
) -> str | None:
    """What plain Python reads of the log: the newest by its own time, of what was known."""
    found: tuple[datetime, str] | None = None
    deleted = datetime.min.replace(tzinfo=UTC)
    for change in log:
        committed = EPOCH + timedelta(microseconds=change.committed_at_us)
        if change.key != (person,) or (known_at is not None and committed > known_at):
            continue
        if change.row is None:
            if committed > at:  # nothing that was recorded later reaches back before it
                break
            found, deleted = None, committed
            continue
        since = max(change.row["since"], deleted)
        if since <= at and (found is None or since >= found[0]):
            found = since, change.row["city"]
    return None if found is None else found[1]
