"""A version is filled from an archive that grows, is cut off, or is of a topic made anew."""

from __future__ import annotations

import secrets
import threading
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest
from deltalake import DeltaTable

from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec
from cdc.postgres import own_schema
from cdc.schema_change import history
from cdc.table import TableName
from projections.archive.rebuilding.store_tasks import FillStore
from projections.changes.record import Record
from projections.definition.expectations.expectation import deletes
from projections.definition.views import MirrorView, SchemaPolicy, Store
from projections.errors import ArchiveIncompleteError, RebuildRefusedError
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores.valkey.sink import CacheSink
from projections.versions import fill as versions_fill
from projections.versions import fill_from_archive, handover, rebuild, registry
from projections.versions.bulk_requests import FORM, BulkAnswer, BulkRequests, BulkServer
from projections.versions.fill import FillOptions
from tests.fix_archive import archived, compacted
from tests.fix_log import envelope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from projections.versions.rebuild import RebuildPlan
    from projections.versions.version import FillProgress, ViewVersion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ORDERS = TableName("public", "orders")


def cached(source: str) -> MirrorView:
    return MirrorView("orders", source, ORDERS, (), frozenset({Store.CACHE}))


@dataclass
class Place:
    """A source whose view lives in the cache alone, and the archive of its topic."""

    connection: psycopg.Connection[Any]
    spec: JobSpec
    written: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return ORDERS.topic(self.spec.config.source)

    def write(self, *rows: dict[str, Any], lost: int = 0) -> None:
        """Archives changes of rows; of those before the last that are lost, nobody has any."""
        self.written += lost
        records = []
        for row in rows:
            value = envelope("u", 0x1000 + 8 * self.written, row, order=1)
            key = orjson.dumps({"id": row["id"]})
            records.append(Record(key, value, "1", 0, self.written))
            self.written += 1
        identity = topics.identities(self.spec.config.bootstrap, [self.topic])[self.topic]
        archived(self.spec.config.archive, self.topic, records, identity=identity)

    def begin(self, **said: Any) -> ViewVersion:
        kept = (deletes("status = 'cancelled'"),)
        view = replace(cached(self.spec.config.source), expectations=kept, **said)
        planned = rebuild.plan_rebuild(self.connection, self.spec, view, "archive")
        return rebuild.begin(self.connection, self.spec.config, view, planned, 0)

    def fill(self, version: ViewVersion, changes: int = 0) -> FillProgress:
        """Fills it, or goes on with it, as a process of its own would."""
        found = rebuild.numbered(self.connection, self.spec.config, version.view, version.number)
        plan = versions_fill.prepare(self.connection, self.spec, version)
        filling = FillOptions(waits=self.told.append)
        fill_from_archive.fill(self.connection, self.spec, found, plan, filling, changes=changes)
        found = rebuild.numbered(self.connection, self.spec.config, version.view, version.number)
        assert found.replayed is not None
        assert found.replayed.progress is None
        return found.replayed

    def rows(self, version: ViewVersion) -> dict[Any, Any]:
        plan = versions_fill.prepare(self.connection, self.spec, version)
        with closing(
            CacheSink(self.spec.config.cache_url, self.spec.config.addresses.cache_prefix)
        ) as sink:
            return {row["id"]: dict(row) for row in sink.documents(plan)}


@pytest.fixture
def place(
    database: str,
    kafka_bootstrap: str,
    cache_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    source = f"s_{secrets.token_hex(4)}"
    config = replace(
        JobConfig.of_tables(source, tmp_path, ()),
        source_dsn=database,
        bootstrap=kafka_bootstrap,
        cache_url=cache_url,
    )
    spec = JobSpec(config, views=(cached(source),))
    monkeypatch.setattr(fill_from_archive, "FEW", 1)
    topics.ensure(kafka_bootstrap, [TopicSpec(ORDERS.topic(source))])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, status text)")
        own_schema.ensure(connection)
        history.observe(connection, [ORDERS])
        registry.register(connection, source, spec.views)
        yield Place(connection, spec)


def orders(first: int, end: int, status: str = "placed") -> list[dict[str, Any]]:
    return [{"id": n, "status": status} for n in range(first, end)]


def test_what_came_since_is_replayed_and_the_rate_stays_that_of_the_whole(place: Place) -> None:
    place.write(*orders(0, 50))
    version = place.begin()
    first = place.fill(version)
    assert ([], 0, 50) == (place.told, first.rounds, first.records)

    place.write(*orders(10, 20, "paid"), *orders(50, 55))
    compacted(place.spec.config.archive)
    place.write(*orders(0, 3, "cancelled"))
    again = place.fill(version)

    said = "version 2 of view orders, catch-up round 1: about 18 records came while it was filled"
    assert ([said], 1, 50, first.seconds) == (
        place.told,
        again.rounds,
        again.records,
        again.seconds,
    )
    assert {(place.topic, 0): 68} == again.ends
    expected = {n: {"id": n, "status": "placed"} for n in range(3, 55)}
    expected |= {n: {"id": n, "status": "paid"} for n in range(10, 20)}
    assert expected == place.rows(version)
    place.write(*orders(60, 61))
    assert again == place.fill(version), "one record is left to the job"


def test_a_lap_follows_a_change_of_the_table_that_its_records_come_after(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(*orders(0, 5))
    version = place.begin(on_schema_change=SchemaPolicy.EVOLVE)
    place.fill(version)
    left = fill_from_archive.records_left

    def changed(*given: Any) -> int:
        """The table changes, and rows of its new shape come, once the replay is done."""
        place.connection.execute("ALTER TABLE orders ADD COLUMN note text")
        place.write({"id": 1, "status": "paid", "note": "n"}, {"id": 7, "status": "", "note": "m"})
        monkeypatch.setattr(fill_from_archive, "records_left", left)
        return left(*given)

    monkeypatch.setattr(fill_from_archive, "records_left", changed)

    assert 1 == place.fill(version).rounds
    rows = place.rows(version)
    assert {"id": 1, "status": "paid", "note": "n"} == rows[1]
    assert {"id": 7, "status": "", "note": "m"} == rows[7]
    assert {"id": 0, "status": "placed"} == rows[0], "it has none, as in any view"


def test_a_lap_that_its_table_has_outlived_is_refused_with_the_reason(place: Place) -> None:
    place.write(*orders(0, 5))
    version = place.begin(on_schema_change=SchemaPolicy.PAUSE)
    place.fill(version)
    place.connection.execute("ALTER TABLE orders ADD COLUMN note text")
    history.observe(place.connection, [ORDERS])

    with pytest.raises(RebuildRefusedError, match="its table has changed"):
        place.fill(version)


def test_what_the_archive_has_lost_is_left_to_the_job_while_the_topic_has_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write(*orders(0, 50))
    version = place.begin()
    first = place.fill(version)
    DeltaTable(place.spec.config.archive).delete()
    place.write(*orders(60, 70), lost=10)

    assert first == place.fill(version)
    assert {(place.topic, 0): 50} == first.ends

    # the topic has it no more either: from the beginning, which the archive has no more
    monkeypatch.setattr(handover, "too_late", lambda *_: True)
    with pytest.raises(ArchiveIncompleteError, match="lacks the first records"):
        place.fill(version)


def test_a_topic_that_was_made_anew_is_no_more_of_the_same(place: Place) -> None:
    place.write(*orders(0, 20))
    version = place.begin()
    first = place.fill(version)
    topics.delete(place.spec.config.bootstrap, [place.topic])
    topics.ensure(place.spec.config.bootstrap, [TopicSpec(place.topic)])
    place.written = 0
    place.write(*orders(0, 40))

    assert {(place.topic, 0): 20} == first.ends
    assert first == place.fill(version), "its offsets are those of another topic"


def test_a_version_of_which_an_earlier_release_noted_no_archive_is_filled_anew(
    place: Place,
) -> None:
    place.write(*orders(0, 20))
    version = place.begin()
    first = place.fill(version)
    older = "UPDATE headwater.view_versions SET replayed = replayed - 'archive' - 'laps'"
    place.connection.execute(older)
    place.write(*orders(20, 40))

    again = place.fill(version)
    assert (40, 0, {(place.topic, 0): 40}) == (again.records, again.rounds, again.ends)
    assert first.records == 20
    assert set(range(40)) == place.rows(version).keys()


def test_what_no_task_can_do_is_done_record_by_record(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a customer's name")

    monkeypatch.setattr(FillStore, "_piece", broken)
    place.write(*orders(0, 20), *orders(10, 20, "cancelled"))
    version = place.begin()

    done = place.fill(version)

    (told,) = place.told
    assert "version 2 of view orders is filled record by record" in told
    assert "ValueError at" in told
    assert "customer" not in told
    assert (30, {(place.topic, 0): 30}) == (done.records, done.ends)
    assert set(range(10)) == place.rows(version).keys()


def test_what_the_jobs_spark_cannot_do_the_command_does_by_itself(place: Place) -> None:
    """The job gives the first piece back: the plan has said otherwise, so the command says why."""
    place.write(*orders(0, 50), *orders(10, 20, "paid"))
    spec = place.spec = replace(place.spec, config=replace(place.spec.config, rebuild_rows_min=60))
    view = replace(cached(spec.config.source), to=frozenset({Store.TABLE}))
    requests, ended = BulkRequests(spec.config), threading.Event()

    def give_back() -> None:
        while not ended.wait(0.05):
            for name, id_ in requests.open():
                requests.answer(name, BulkAnswer(id_, "its disk is full"))

    def planned() -> RebuildPlan:
        return rebuild.plan_rebuild(place.connection, spec, view, "archive")

    no_job = "the job does not run, is starting, or is of another release"
    assert planned().filled_by == (False, no_job)
    job = threading.Thread(target=give_back)
    with requests.serving():
        requests.serve(BulkServer(slots=4, form=FORM))
        assert planned().filled_by == (True, "at least 60 changes")
        version = rebuild.begin(place.connection, spec.config, view, planned(), 0)
        job.start()
        try:
            done = place.fill(version, changes=60)
        finally:
            ended.set()
            job.join(30)

    why = "the job's Spark cannot do it: its disk is full"
    assert [f"version 2 of view orders is filled by this command: {why}"] == place.told
    assert (60, {(place.topic, 0): 60}) == (done.records, done.ends)
    table = DeltaTable(str(spec.config.addresses.tables / version.physical_name)).to_pyarrow_table()
    rows = {row["id"]: row["status"] for row in table.to_pylist()}
    assert {n: "paid" if 10 <= n < 20 else "placed" for n in range(50)} == rows
    assert [] == requests.open()
    assert not requests.asked(version.physical_name)
    assert planned().filled_by == (False, "only newer records are left")
