"""A view made from others is the same from the archive in one batch as it is kept change by change.

Transactions of two tables interleave; rows come late, move to other times and groups, and go. One
side follows boundary by boundary from rows that an oracle knows. The other has the archive alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.lsn import Lsn
from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater.reading.replay import boundary
from projections.archive.as_of import former
from projections.archive.commits import Commits, Moment
from projections.archive.scan import ArchiveScan
from projections.changes.record import Record
from projections.changes.row_change import RowChange
from projections.definition.registry import load
from projections.definition.views import DerivedView, Store
from projections.errors import DuplicateKeyError, ViewHaltedError
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.planning.view_plan import plan_views
from projections.publishing.published_versions import Published
from projections.stores.delta.table_sink import TableSink
from tests.fix_archive import archived, compacted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from projections.job.batch.replay_derived import DerivedReplay
    from projections.planning.view_plan import ViewPlan

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

VIEWS = """
from headwater import Late, Pattern, Session, Step, Tumbling, expect, source, view

shop = source("shop", tables=["public.events", "public.people"])
events = view.mirror("events", shop["public.events"], to=["table"])
people = view.mirror("people", shop.people, to=["table"])

windows = view.aggregate(
    "windows",
    events,
    by=["person"],
    to=["table"],
    window=Tumbling("at", "1 hour"),
    late=Late("came", after="20 minutes", count="late"),
    count="n",
    sums={"total": "amount"},
    distinct={"kinds": "amount"},
)
view.aggregate(
    "visits", events, by=["person"], to=["table"], window=Session("at", "30 minutes"), count="n"
)
view.pattern(
    "rises",
    events,
    by=["person"],
    to=["table"],
    time="at",
    pattern=Pattern(
        [Step("low", "amount <= 1"), Step("high", "amount > 1", beside=["amount > low.amount"])],
        within="3 hours",
    ),
    keep=["id", "amount"],
)
view.sql(
    "named",
    "SELECT e.id, e.amount, p.city FROM events e LEFT JOIN people p ON p.id = e.person",
    keys=["id"],
    to=["table"],
    expect=[expect("some", "amount > 0", on_fail="drop")],
)


@view(keys=["city"], to=["table"])
def cities(named, windows):
    hours = windows.agg({"n": "sum"}).withColumnRenamed("sum(n)", "all_n")
    return named.groupBy("city").agg({"amount": "sum"}).withColumnRenamed(
        "sum(amount)", "total"
    ).crossJoin(hours)
"""
NIGHT = datetime(2026, 10, 24, 20, tzinfo=UTC)
BEGAN_US = round(datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp() * 1_000_000)
NUMBER = (ColumnKind.INTEGER, "bigint")
TEXT = (ColumnKind.TEXT, "text")
INSTANT = (ColumnKind.TIMESTAMPTZ, "timestamp with time zone")
TABLES = {
    "events": {"person": NUMBER, "amount": NUMBER, "at": INSTANT, "came": INSTANT},
    "people": {"city": TEXT},
}
KEYS = {"events": range(1, 17), "people": range(1, 4)}

Row = dict[str, Any]


def schema(name: str) -> TableSchema:
    columns = [Column("id", *NUMBER, nullable=False)]
    columns += [Column(column, *kind) for column, kind in TABLES[name].items()]
    return TableSchema(TableName("public", name), tuple(columns), ("id",))


@dataclass
class Log:
    """A source whose transactions interleave, its rows, and the records of its changes."""

    chance: Random
    lsn: int = 0x1000
    at_us: int = BEGAN_US
    commit: int = 0
    rows: dict[str, dict[int, Row]] = field(default_factory=lambda: {name: {} for name in TABLES})
    records: list[tuple[str, Record, datetime]] = field(default_factory=list)

    def together(self, transactions: int) -> None:
        """Runs transactions on rows of their own; who wrote first may commit last."""
        chance = self.chance
        written: list[list[tuple[int, str, int, Row | None]]] = [[] for _ in range(transactions)]
        for _ in range(5 * transactions):
            which = chance.randrange(transactions)
            name = chance.choice(["events", "events", "events", "people"])
            own = [key for key in KEYS[name] if key % transactions == which]
            row = None if chance.random() < 0.25 else self._row(name)
            written[which].append((self.lsn, name, chance.choice(own), row))
            self.lsn += 8 * chance.randint(1, 3)
        chance.shuffle(written)
        for changes in written:
            self.at_us += 1_000_000
            for number, (lsn, name, key, row) in enumerate(changes, 1):
                self._change(lsn, number, name, key, row)
            self.commit = self.lsn
            self.lsn += 8 * chance.randint(1, 2)

    def _row(self, name: str) -> Row:
        chance = self.chance
        if name == "people":
            return {"city": chance.choice(["Falun", "Lund", None])}
        minutes = chance.choice([None, *range(0, 300, 15)])
        at = None if minutes is None else NIGHT + timedelta(minutes=minutes)
        delay = chance.choice([None, 5, 30, 70, 85, 120, 1500])
        return {
            "person": chance.choice([None, 1, 2, 3]),
            "amount": chance.choice([None, 0, 1, 5, 9]),
            "at": at,
            "came": None if at is None or delay is None else at + timedelta(minutes=delay),
        }

    def _change(self, lsn: int, number: int, name: str, key: int, row: Row | None) -> None:
        before = self.rows[name].pop(key, None)
        if row is None and before is None:
            return
        after = None
        if row is not None:
            after = self.rows[name][key] = {"id": key, **row}
        source = {
            "schema": "public",
            "table": name,
            "ts_us": self.at_us,
            "sequence": orjson.dumps([str(self.commit or "") or None, str(lsn)]).decode(),
            "lsn": lsn,
            "txId": 7,
        }
        value = {
            "before": {"id": key} if after is None else None,
            "after": after and {c: _encoded(v) for c, v in after.items()},
            "source": source,
            "transaction": {"id": "1", "total_order": number},
            "op": "d" if after is None else "c" if before is None else "u",
        }
        topic = f"shop.public.{name}"
        offset = sum(1 for each, _, _ in self.records if each == topic)
        record = Record(orjson.dumps({"id": key}), orjson.dumps(value), "1", 0, offset)
        sent = datetime.fromtimestamp(self.at_us / 1e6, UTC)
        self.records.append((topic, record, sent))

    def archive(self, folder: Path) -> Path:
        for topic in sorted({topic for topic, _, _ in self.records}):
            for sent in sorted({sent for _, _, sent in self.records}):
                own = [r for t, r, at in self.records if (t, at) == (topic, sent)]
                archived(folder, topic, own, sent)
        compacted(folder)
        return folder


def _encoded(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


class Live:
    """What a job keeps: mirrors that an oracle writes, and views that follow by boundaries."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        from projections.job.spark.session import session_of_batches
        from projections.job.tasks.derived_tables import DerivedTablesTask

        (home / "views.py").write_text(VIEWS)
        known = load(home / "views.py")
        schemas = {TableName("public", name): schema(name) for name in TABLES}
        self.plans: Sequence[ViewPlan] = plan_views(known.views.values(), schemas)
        self.derived = list(known.derived.values())
        spec = JobSpec(JobConfig.of_tables("shop", home, ()), derived=tuple(self.derived))
        self.spec = replace(spec, plans=tuple(self.plans))
        self.tables = self.spec.config.addresses.tables
        self.published = Published(self.tables, "shop")
        self._sink = TableSink(self.tables)
        self._had: dict[str, dict[int, Row]] = {name: {} for name in TABLES}
        self._deriver = DerivedTablesTask(spark, session_of_batches(spark), self.spec)
        for plan in self.spec.plans_in(Store.TABLE):
            self._sink.prepare(plan)

    def publish(self, log: Log) -> None:
        """Brings everything to the last commit."""
        versions = {}
        for plan in self.spec.plans_in(Store.TABLE):
            had, rows = self._had[plan.view], log.rows[plan.view]
            changes = [
                RowChange((key,), 1 << 56 | log.commit, rows.get(key), log.at_us)
                for key in sorted({*had, *rows})
                if had.get(key) != rows.get(key)
            ]
            self._sink.apply(plan, changes)
            self._had[plan.view] = dict(rows)
            versions[plan.name] = self._sink.version(plan)
        self.published.publish(1, log.commit, versions, complete=False)
        newest = self.published.newest()
        assert newest is not None
        self.published.complete(newest, self._deriver.derived(newest))
        assert {} == self._deriver.faults


def replayed(
    spark: SparkSession, live: Live, archive: Path, at: Moment, tables: Path
) -> DerivedReplay:
    from projections.job.batch.replay_derived import DerivedReplay

    made = former(archive, live.plans, at, tables)
    places = {plan.view: plan.name for plan in live.plans}
    reached = made.reached
    return DerivedReplay(spark, made.tables, places, reached.epoch, reached.commit.value)


def rows(tables: Path, name: str, version: int | None = None) -> list[Mapping[str, Any]]:
    table = DeltaTable(tables / name, version=version).to_pyarrow_table().drop(["_version"])
    return sorted(table.to_pylist(), key=repr)


def test_the_archive_in_one_batch_gives_what_was_kept_boundary_by_boundary(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, live = Log(Random(2)), Live(spark, tmp_path)  # noqa: S311  # chance that is repeated
    for _ in range(4):
        log.together(3)
        live.publish(log)
    beyond = dict(log.rows["events"])
    log.together(2)
    assert beyond != log.rows["events"]
    archive = log.archive(tmp_path / "archive")
    reached = Commits(ArchiveScan(archive, None)).reached(Moment())
    versions = live.published.all()
    seen: dict[str, set[str]] = {view.name: set() for view in live.derived}

    assert versions[-1] == boundary(versions, live.derived, reached)
    for version in (versions[1], versions[-1]):
        folder = tmp_path / f"former-{version.number}"
        at = Moment(lsn=version.applied_through, epoch=version.epoch)
        replay = replayed(spark, live, archive, at, folder)
        count = replay.make(live.derived)
        assert count == len(rows(folder, live.derived[-1].name))
        for view in live.derived:
            kept = rows(live.tables, view.name, version.views[view.name].version)
            assert kept == rows(folder, view.name), (view.name, version.number)
            seen[view.name].add(repr(kept))
        last = live.derived[-1]
        assert replay.compare(last, live.tables, last.name, version.views[last.name].version).same
    assert all(len(states) > 1 for states in seen.values()), "nothing has changed"


def test_what_differs_is_counted_and_named_and_what_cannot_be_made_says_why(
    spark: SparkSession, tmp_path: Path
) -> None:
    log, live = Log(Random(3)), Live(spark, tmp_path)  # noqa: S311  # as above
    log.together(3)
    live.publish(log)
    log.together(2)
    archive = log.archive(tmp_path / "archive")
    (version,) = live.published.all()
    named = next(view for view in live.derived if view.name == "named")
    folder = tmp_path / "former"
    replay = replayed(spark, live, archive, Moment(lsn=Lsn(version.lsn)), folder)
    replay.make(live.derived)
    first, second, *_ = (row["id"] for row in rows(folder, "named"))

    kept = DeltaTable(live.tables / "named")
    kept.delete(f"id = {first}")
    kept.update({"amount": "77"}, predicate=f"id = {second}")
    found = replay.compare(named, live.tables, named.name, kept.version())
    assert found.counts is not None
    assert (1, 0, 1) == (found.counts.missing, found.counts.extra, found.counts.different)
    assert {f"row {first} (missing)", f"row {second} (different in amount)"} == {
        str(each) for each in found.examples
    }
    other = pa.table({"id": ["1"], "town": [None], "amount": [5]})
    write_deltalake(tmp_path / "other" / "named", other.cast(OTHER))
    unlike = replay.compare(named, tmp_path / "other", named.name, 0)
    assert (False, {"id", "city", "town"}) == (unlike.same, {*unlike.columns})

    twice = DerivedView("twice", ("amount",), frozenset({Store.TABLE}), ("events",), TWICE)
    with pytest.raises(DuplicateKeyError, match="key of the view twice"):
        replay.make([twice])
    (halting,) = (view for view in load(halts(tmp_path)).derived.values())
    with pytest.raises(ViewHaltedError, match="does not meet an expectation"):
        replay.make([halting])


OTHER = pa.schema([("id", pa.string()), ("town", pa.string()), ("amount", pa.int64())])
TWICE = "SELECT 1 AS amount, id FROM events"
HALTS = """
from headwater import expect, source, view

shop = source("shop", tables=["public.events"])
events = view.mirror("events", shop["public.events"], to=["table"])
view.sql(
    "halting",
    "SELECT id FROM events",
    keys=["id"],
    to=["table"],
    expect=[expect("none", "id < 0", on_fail="fail")],
)
"""


def halts(folder: Path) -> Path:
    path = folder / "halts.py"
    path.write_text(HALTS)
    return path
