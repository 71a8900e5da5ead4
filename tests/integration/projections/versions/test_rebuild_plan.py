"""What a rebuild needs is asked before anything starts; what comes to no good end is refused."""

from __future__ import annotations

import secrets
import shutil
import time
from contextlib import closing
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest
import redis

from cdc.postgres import own_schema
from cdc.table import TableName
from eventstore.model.event import AppendRequest, StreamAppend
from eventstore.privacy.keyring import MemoryKeyRing
from eventstore.serialization.codec import Codec
from eventstore.serialization.registry import EventData, EventTypes
from projections.changes.record import Record
from projections.changes.row_change import RowChange
from projections.definition.expectations.expectation import deletes
from projections.definition.views import EventsRef, EventsView, MirrorView, Store
from projections.errors import ArchiveIncompleteError, RebuildRefusedError, RebuildStoppedError
from projections.planning.binding import bind
from projections.planning.job_config import JobConfig
from projections.planning.job_spec import JobSpec
from projections.stores import capacity
from projections.stores.opensearch.sink import SearchSink
from projections.stores.valkey.sink import CacheSink
from projections.versions import handover, rebuild, registry
from projections.versions.compare import compare_versions
from projections.versions.handover import HandoverOffsets
from projections.versions.version import FillProgress
from tests.fix_archive import archived
from tests.fix_log import envelope

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventstore.postgres.log import PostgresEventLog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

ORDERS = TableName("public", "orders")
TABLE = """
CREATE TABLE orders (id int PRIMARY KEY, status text);
INSERT INTO orders SELECT n, 'placed' FROM generate_series(1, 3000) n;
CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (1) TO (1000);
CREATE TABLE parted_high PARTITION OF parted FOR VALUES FROM (1000) TO (9000);
INSERT INTO parted SELECT generate_series(1, 2000);
"""
CACHED = MirrorView("orders", "shop", ORDERS, (), frozenset({Store.CACHE}))
PLACED = replace(CACHED, expectations=(deletes("status = 'cancelled'"),))


@dataclass(frozen=True)
class Place:
    """A source whose view lives in the cache alone."""

    connection: psycopg.Connection[Any]
    spec: JobSpec

    def versions(self) -> list[int]:
        return [each.number for each in registry.read(self.connection, self.spec.config.source)]


@pytest.fixture
def place(database: str, kafka_bootstrap: str, cache_url: str, tmp_path: Path) -> Iterator[Place]:
    source = f"s_{secrets.token_hex(4)}"
    config = replace(
        JobConfig.of_tables(source, tmp_path, ()),
        source_dsn=database,
        bootstrap=kafka_bootstrap,
        cache_url=cache_url,
    )
    spec = JobSpec(config, views=(CACHED,))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE)
        own_schema.ensure(connection)
        bound = bind(connection, source, [CACHED], decides=True)
        registry.register(connection, source, [CACHED])
        yield Place(connection, replace(spec, plans=bound.plans))


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))


def test_a_view_without_a_table_is_refused_on_a_disk_that_is_too_small(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, spec = place.connection, place.spec
    planned = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    assert planned.disk_bytes > 3000 * 8

    with_free(monkeypatch, planned.disk_bytes - 1)
    again = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    with pytest.raises(RebuildRefusedError, match="too small"):
        rebuild.begin(connection, spec.config, PLACED, again, 0)
    assert [1] == place.versions()

    with_free(monkeypatch, planned.disk_bytes)
    enough = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    assert 2 == rebuild.begin(connection, spec.config, PLACED, enough, 0).number


def test_a_version_that_would_fill_the_cache_is_refused_before_it_starts(place: Place) -> None:
    connection, spec = place.connection, place.spec
    first = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    assert {} == first.stores, "nothing is known of a view that has no row there"
    rows = [{"id": n, "status": "placed" * 20} for n in range(1, 2001)]
    changes = [RowChange((row["id"],), row["id"], row, 1) for row in rows]
    with closing(CacheSink(spec.config.cache_url, spec.config.addresses.cache_prefix)) as sink:
        for plan in spec.plans:
            sink.prepare(plan)
            sink.apply(plan, changes)

    planned = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    taken = planned.stores["cache"]
    assert 2000 * 120 < taken.taken_bytes < 2000 * 600
    assert taken.free_bytes is None or taken.free_bytes > taken.taken_bytes

    full = replace(planned, stores={"cache": taken._replace(free_bytes=taken.taken_bytes - 1)})
    with pytest.raises(RebuildRefusedError, match="the cache is too small") as refused:
        rebuild.begin(connection, spec.config, PLACED, full, 0)
    assert f"{taken.taken_bytes:,} bytes of memory" in (refused.value.detail or "")
    assert [1] == place.versions()
    enough = replace(planned, stores={"cache": taken._replace(free_bytes=taken.taken_bytes)})
    assert 2 == rebuild.begin(connection, spec.config, PLACED, enough, 0).number


def test_what_a_version_takes_of_the_stores_is_measured_where_it_is(
    place: Place, search_url: str
) -> None:
    spec = replace(place.spec, config=replace(place.spec.config, search_url=search_url))
    (plan,) = (replace(each, name=f"{spec.config.source}_orders") for each in spec.plans)
    assert capacity.search_capacity(search_url, plan.name) is None
    change = RowChange((1,), 1, {"id": 1, "status": "placed"}, 1)
    with closing(SearchSink(search_url)) as sink:
        sink.prepare(plan)
        sink.apply(plan, [change])
        found = capacity.store_capacities(spec.config.addresses, plan.name, Store)
        assert {"search"} == found.keys()
        assert found["search"].taken_bytes > 0
        assert found["search"].free_bytes is None
        unreachable = replace(spec, config=replace(spec.config, search_url="http://127.0.0.1:1"))
        assert {} == capacity.store_capacities(unreachable.config.addresses, plan.name, Store)
        sink.drop(plan)

    with redis.Redis.from_url(spec.config.cache_url) as client:
        prefix = spec.config.addresses.cache_prefix
        client.set(f"{prefix}one:1", "x" * 5000)
        client.set(f"{prefix}one.v2:1", "of another version")
        taken = client.memory_usage(f"{prefix}one:1")
        measured = capacity.cache_capacity(spec.config.cache_url, prefix, "one")
        assert measured is not None
        assert taken == measured.taken_bytes
        limit = client.config_get("maxmemory")["maxmemory"]
        assert (int(limit) == 0) == (measured.free_bytes is None)


def test_a_read_of_the_table_is_planned_by_what_the_source_says_of_it(place: Place) -> None:
    connection, spec = place.connection, place.spec
    unknown = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    assert (unknown.changes > 0, unknown.lacking) == (True, None)
    connection.execute("ANALYZE")
    parted = replace(CACHED, name="parted", table=TableName("public", "parted"))

    planned = [rebuild.plan_rebuild(connection, spec, view, "source") for view in (PLACED, parted)]

    assert [3000, 2000] == [each.changes for each in planned]
    assert all(each.seconds > 0 and each.disk_bytes > 0 for each in planned)


def test_a_plan_reckons_with_the_last_rebuild_of_the_view_and_the_share_that_it_had(
    place: Place,
) -> None:
    connection, spec = place.connection, place.spec
    connection.execute("ANALYZE")
    planned = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    begun = rebuild.begin(connection, spec.config, PLACED, planned, 0)
    replayed = FillProgress({}, None, 6000, 2.0, 0.5)
    registry.note_replayed(connection, spec.config.source, begun.physical_name, replayed)

    again = rebuild.plan_rebuild(connection, spec, PLACED, "source")

    assert (0.5, "by its last rebuild") == (again.seconds, again.known_by)
    row = "UPDATE headwater.view_versions SET replayed = replayed - 'share' WHERE place = %s"
    connection.execute(row, (begun.physical_name,))  # as it was noted before there was a share
    older = rebuild.plan_rebuild(connection, spec, PLACED, "source")
    assert (1.0, True) == (older.seconds, "was not recorded" in older.known_by)


def test_an_archive_that_is_cut_off_is_told_in_the_plan_and_nothing_starts(place: Place) -> None:
    connection, spec = place.connection, place.spec
    topic = ORDERS.topic(spec.config.source)
    row = {"id": 1, "note": "n", "big": "b"}
    lost = Record(b'{"id":1}', envelope("u", 0x1000, row, order=1), "1", 0, 7)
    archived(spec.config.archive, topic, [lost._replace(key=orjson.dumps({"id": 1}))])

    planned = rebuild.plan_rebuild(connection, spec, PLACED, "archive")
    assert f"topic {topic}: partition 0 begins at 7" in (planned.lacking or "")
    assert "headwater view rebuild orders --from-source" in (planned.instead or "")
    with pytest.raises(ArchiveIncompleteError) as refused:
        rebuild.begin(connection, spec.config, PLACED, planned, 0)
    assert ("HW-P107", planned.instead) == (refused.value.code, refused.value.hint)
    assert [1] == place.versions()


def test_whoever_waits_for_a_version_is_told_for_which_stores(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, spec = place.connection, place.spec
    begun = rebuild.begin(
        connection, spec.config, PLACED, rebuild.plan_rebuild(connection, spec, PLACED, "source"), 0
    )
    rebuild.join(connection, spec.config, begun)
    monkeypatch.setattr(rebuild, "REPORT_INTERVAL_S", 0.0)
    told: list[str] = []

    with pytest.raises(RebuildStoppedError):
        rebuild.await_held(
            connection,
            spec.config,
            begun,
            stopped=lambda: len(told) > 1,
            running=lambda: True,
            report=told.append,
        )

    assert ["version 2 of view orders is filled; the job adopts it: 0 s, not yet in cache"] == told[
        :1
    ]


def test_a_version_is_waited_for_as_long_as_it_comes_nearer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, spec = place.connection, place.spec
    begun = rebuild.begin(
        connection, spec.config, PLACED, rebuild.plan_rebuild(connection, spec, PLACED, "source"), 0
    )
    rebuild.join(connection, spec.config, begun)
    monkeypatch.setattr(rebuild, "STILL_MAX_S", 1.0)
    monkeypatch.setattr(rebuild, "REPORT_INTERVAL_S", 0.0)
    monkeypatch.setattr(handover, "LOOK_S", 0.0)
    asked: list[float] = []
    told: list[str] = []

    def running() -> bool:
        """The job takes records for three seconds, and then the same ones again and again."""
        asked.append(time.monotonic())
        many = min(len(asked), 15)
        handover.note(
            spec.config, begun.physical_name, {Store.CACHE: HandoverOffsets(many, 1015 - many)}
        )
        return True

    with pytest.raises(RebuildStoppedError) as ended:
        rebuild.await_held(
            connection,
            spec.config,
            begun,
            stopped=lambda: False,
            running=running,
            report=told.append,
        )

    assert asked[-1] - asked[0] > 3.5
    assert "it has come no nearer for 1 s" == ended.value.detail
    assert told[-1].endswith("not yet in cache; about 1,000 records are left for cache")


def test_what_is_written_to_a_version_where_it_is_brings_it_no_nearer_elsewhere(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "LOOK_S", 0.0)
    spec, near = place.spec, handover.HandoverProgress(place.spec.config, "orders.v2")

    def moved(there: set[Store], records: int) -> bool:
        views = {"views": {"orders.v2": {"records": records}}}
        spec.config.status_file.parent.mkdir(parents=True, exist_ok=True)
        spec.config.status_file.write_bytes(
            orjson.dumps({"queries": {"cache": views, "search": {}}})
        )
        before = time.monotonic()
        near.look(there)
        return near.still_s < time.monotonic() - before

    assert moved(set(), 1)
    assert not moved(set(), 1)
    assert moved(set(), 2)  # a query has gone back for it
    assert moved({Store.CACHE}, 3)
    assert not moved({Store.CACHE}, 4)
    handover.note(spec.config, "orders.v3", {Store.SEARCH: HandoverOffsets(9, 1)})
    assert not moved({Store.CACHE}, 5)
    handover.note(spec.config, "orders.v2", {Store.SEARCH: HandoverOffsets(9, 1)})
    assert moved({Store.CACHE}, 5)


def test_events_that_nothing_can_read_any_more_are_told_before_a_view_is_built_without_them(
    store_dsn: str, pg_log: PostgresEventLog, tmp_path: Path
) -> None:
    written = EventTypes()
    written.untyped("order.placed")
    stored = Codec(written, MemoryKeyRing()).encode(
        EventData("order.placed", {"total": 5}), tenant="t", stream="order-1", stream_position=1
    )
    pg_log.append(AppendRequest((StreamAppend("order-1", (stored,), 0),), tenant="t"))
    types = EventTypes()
    types.untyped("order.placed", version=2)
    view = EventsView(
        "placed", "shop", EventsRef("shop", ("order.placed",), types), frozenset({Store.TABLE})
    )
    spec = JobSpec(replace(JobConfig.of_tables("shop", tmp_path, ()), source_dsn=store_dsn))

    with psycopg.connect(store_dsn, autocommit=True) as connection:
        own_schema.ensure(connection)
        with pytest.raises(RebuildRefusedError) as refused:
            rebuild.plan_rebuild(connection, spec, view, "archive")
        types.upcaster("order.placed", 1)(lambda data: data)
        assert "source" == rebuild.plan_rebuild(connection, spec, view, "source").source

    assert "HW-P136" == refused.value.code
    assert "version 1 of order.placed is in the store" in (refused.value.detail or "")
    assert "upcaster" in (refused.value.hint or "")


def test_a_view_in_the_cache_that_deletes_some_rows_by_now_differs_in_those_alone(
    place: Place,
) -> None:
    connection, spec = place.connection, place.spec
    plans = bind(connection, spec.config.source, [CACHED, replace(PLACED, name="orders.v2")]).plans
    old, new = plans
    rows = [{"id": n, "status": "cancelled" if n % 5 == 0 else "placed"} for n in range(1, 51)]
    sink = CacheSink(spec.config.cache_url, spec.config.addresses.cache_prefix)
    for plan in plans:
        sink.prepare(plan)
        kept = [row for row in rows if plan is old or row["status"] == "placed"]
        sink.apply(plan, [RowChange((row["id"],), row["id"], row, 1) for row in kept])
    (current,) = registry.read(connection, spec.config.source)
    change = registry.changed(connection, current, PLACED)

    found = compare_versions(connection, spec.config, old, new, change)
    assert (True, {"rows that orders.v2 excludes: apply_as_deletes": 10}) == (
        found.same,
        found.explained,
    )
    sink.apply(new, [RowChange((7,), 99, {"id": 7, "status": "lost"}, 1)])
    sink.close()
    differing = compare_versions(connection, spec.config, old, new, change).unexplained
    assert {"status": 1} == dict(differing.by_column)
    assert [("7",)] == [each.key for each in differing.examples_changed]
    assert {"status": ("placed", "lost")} == differing.examples_changed[0].values
