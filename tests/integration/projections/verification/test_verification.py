"""Views are verified while writes go on; what is wrong is found, and repaired."""

from __future__ import annotations

import random
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest
import redis
from deltalake import DeltaTable, write_deltalake

from cdc.lsn import Lsn
from projections.changes.row_change import RowChange
from projections.common.throttle import Throttle
from projections.definition.views import Store
from projections.errors import (
    NotCaughtUpError,
    RepairRefusedError,
    SinkUnavailableError,
    VerificationError,
)
from projections.job.batch.verify_derived import verify_derived
from projections.publishing import positions
from projections.stores.factory import open_sink
from projections.stores.opensearch.client import SearchEngine
from projections.stores.opensearch.sink import index_name
from projections.verification import results_table, truth
from projections.verification.background import BackgroundVerification
from projections.verification.repair import repair
from projections.verification.report import KeyVerdict
from projections.verification.verify import JobVerification, verify
from tests.fix_capture import reading
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.verification.report import Uncompared, ViewReport
    from tests.fix_capture import Captured
    from tests.fix_follower import Follower
    from tests.fix_gate import Gate

pytestmark = pytest.mark.integration

TABLES = """
CREATE TABLE things (
    id bigint PRIMARY KEY, name text NOT NULL, total numeric(12,2), at timestamptz, data bytea
);
CREATE TABLE visits (page text, at timestamptz DEFAULT now());
INSERT INTO things SELECT g, 'n' || g, g / 3.0, now(), '\\x00ff'::bytea
  FROM generate_series(1, 400) AS g;
INSERT INTO visits SELECT 'p' || g % 7 FROM generate_series(1, 50) AS g
"""
HOT = range(1, 6)
OPEN_S = 0.05


@pytest.fixture
def captured(database: str, capture: Callable[..., Captured]) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    return capture("public.things", "public.visits")


@contextmanager
def writing(dsn: str, writers: int = 2) -> Iterator[None]:
    """Writes to few keys all the time, and now and then to others; some transactions stay open."""
    stop = threading.Event()

    def write(seed: int) -> None:
        draw = random.Random(seed)  # noqa: S311
        with psycopg.connect(dsn) as connection:
            while not stop.is_set():
                keys = [
                    draw.choice(HOT) if draw.random() < 0.7 else 1000 + draw.randrange(60)
                    for _ in range(draw.randint(1, 3))
                ]
                for key in sorted(keys):  # in one order, so that none waits for another in a ring
                    connection.execute(_statement(draw), {"id": key, "n": draw.randrange(10**6)})
                connection.execute("INSERT INTO visits VALUES (%s)", (f"p{draw.randrange(7)}",))
                if draw.random() < 0.1:
                    stop.wait(OPEN_S)
                (connection.rollback if draw.random() < 0.1 else connection.commit)()
                stop.wait(0.02)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def _statement(draw: random.Random) -> str:
    upsert = (
        "INSERT INTO things VALUES (%(id)s, 'w' || %(n)s, %(n)s / 7.0, now(), NULL)"
        " ON CONFLICT (id) DO UPDATE SET name = excluded.name, total = excluded.total"
    )
    return "DELETE FROM things WHERE id = %(id)s" if draw.random() < 0.3 else upsert


def wrong(reports: list[ViewReport]) -> dict[tuple[str, Store], ViewReport]:
    found = {(r.view.split("_", 2)[2], r.store): r for r in reports if not r.equal}
    assert all(report.verified_through is None for report in found.values())
    return found


def test_constant_writes_raise_no_alarm_and_what_is_wrong_is_found_and_repaired(
    captured: Captured, follower: Callable[..., Follower]
) -> None:
    kept = follower(captured)
    kept.caught_up()
    with writing(captured.database), reading(captured):
        before = end_of(captured.database)
        for _ in range(4):
            reports = verify(kept.spec)

            assert {} == wrong(reports) == wrong(verify(kept.spec, stores=[Store.TABLE]))
            assert 6 == len(reports)
            through = [r.verified_through for r in reports if r.verified_through is not None]
            assert 6 == len(through)
            assert before < min(through)
            assert all(r.moving < 60 for r in reports if r.view.endswith("_things"))

        damage(kept)
        # a row without a key that is like one on its way is not missed until that has arrived
        found = wait_until(
            lambda: wrong(verify(kept.spec)),
            "the row that is missing without a key",
            accept=lambda found: ("visits", Store.TABLE) in found,
            timeout_s=LONG_S,
        )

        named = {
            place[1]: {(each.key, each.verdict, each.columns) for each in report.findings}
            for place, report in found.items()
            if place[0] == "things"
        }
        assert named == {
            Store.CACHE: {
                ("101", KeyVerdict.DIFFERENT, ("name",)),
                ("102", KeyVerdict.MISSING, ()),
                ("103", KeyVerdict.DIFFERENT, ("name", "total")),
                ("70001", KeyVerdict.EXTRA, ()),
            },
            Store.SEARCH: {
                ("101", KeyVerdict.DIFFERENT, ("name",)),
                ("102", KeyVerdict.MISSING, ()),
                ("70001", KeyVerdict.EXTRA, ()),
            },
            Store.TABLE: {
                ("101", KeyVerdict.DIFFERENT, ("name",)),
                ("102", KeyVerdict.MISSING, ()),
                ("104", KeyVerdict.DUPLICATED, ()),
                ("105", KeyVerdict.DUPLICATED, ()),
                ("70001", KeyVerdict.EXTRA, ()),
            },
        }
        table = found["things", Store.TABLE]
        assert (1, 3, 1, 2) == (table.missing, table.extra, table.different, table.duplicated)
        assert (1, 0) == (found["visits", Store.TABLE].missing, found["visits", Store.TABLE].extra)
        assert {*table.findings} == {*wrong_by_column(kept).findings}

        things = [report for report in found.values() if report.view.endswith("_things")]
        repaired = repair(captured.spec, kept.spec, things, verify_derived)

        cured = {each.store: (each.asked, each.cured, each.left) for each in repaired}
        assert cured == {
            Store.CACHE: (4, 4, ()),
            Store.SEARCH: (3, 3, ()),
            Store.TABLE: (5, 5, ()),
        }
        assert [("visits", Store.TABLE)] == list(wrong(verify(kept.spec)))
        with pytest.raises(RepairRefusedError) as refused:
            repair(captured.spec, kept.spec, [found["visits", Store.TABLE]], verify_derived)
        assert "resnapshot public.visits" in str(refused.value.hint)
    assert 0 == sum(report.moving for report in at_rest(kept))


def wrong_by_column(kept: Follower) -> ViewReport:
    """The report for the table alone, which is compared column by column."""
    return wrong(verify(kept.spec, stores=[Store.TABLE]))["things", Store.TABLE]


def at_rest(kept: Follower) -> list[ViewReport]:
    kept.caught_up()
    return verify(kept.spec)


def end_of(dsn: str) -> Lsn:
    with psycopg.connect(dsn) as connection:
        row: Any = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
    return Lsn.parse(row[0])


def damage(kept: Follower) -> None:
    """Alters a value in each store, takes a row out, adds one, doubles two, makes one old."""
    things = next(plan for plan in kept.spec.plans if plan.name.endswith("_things"))
    visits = next(plan for plan in kept.spec.plans if plan.name.endswith("_visits"))
    tables = kept.spec.config.addresses.tables
    table = DeltaTable(str(tables / things.name))
    rows = table.to_pyarrow_table().to_pylist()
    row = {each["id"]: each for each in rows}
    schema = table.to_pyarrow_table().schema

    def written(change: Callable[[], Any]) -> None:
        for _ in range(50):  # the follower commits as well
            try:
                change()
            except Exception as error:
                if "conflict" not in str(error).lower() and "transaction" not in str(error).lower():
                    raise
                table.update_incremental()
            else:
                return
        raise AssertionError

    import pyarrow as pa

    written(lambda: table.update(updates={"name": "'flipped'"}, predicate="id = 101"))
    written(lambda: table.delete("id = 102"))
    old = {**row[105], "name": "older", "_version": row[105]["_version"] - 8}
    more = [{**row[101], "id": 70001}, row[104], old]
    write_deltalake(table, pa.Table.from_pylist(more, schema=schema), mode="append")
    written(lambda: DeltaTable(str(tables / visits.name)).delete(_one_of(tables / visits.name)))

    client = redis.Redis.from_url(kept.spec.config.cache_url)
    begin = f"{kept.spec.config.addresses.cache_prefix}{things.name}:"
    value = client.get(f"{begin}101")
    client.set(f"{begin}101", value.replace(b'"n101"', b'"n1O1"'))
    client.delete(f"{begin}102")
    stale = orjson.loads(client.get(f"{begin}103"))
    stale |= {"name": "older", "total": "1.00"}
    stale["_version"] = f"{int(stale['_version']) - 8:019d}"
    client.set(f"{begin}103", orjson.dumps(stale))
    client.set(f"{begin}70001", value.replace(b'"id":101', b'"id":70001'))
    client.close()

    engine, index = SearchEngine(kept.spec.config.search_url), index_name(things)
    found = engine.request("GET", f"/{index}/_doc/101")
    same = f"version={found['_version']}&version_type=external_gte&refresh=true"
    flipped = {**found["_source"], "name": "n1O1"}
    engine.request("PUT", f"/{index}/_doc/101?{same}", flipped)
    engine.request("PUT", f"/{index}/_doc/70001?{same}", {**found["_source"], "id": 70001})
    engine.request("DELETE", f"/{index}/_doc/102?{same}")
    engine.close()


def _one_of(path: Any) -> str:
    first = DeltaTable(str(path)).to_pyarrow_table().column("_row_id")[0].as_py()
    return f"_row_id = '{first}'"


def test_a_view_that_does_not_come_further_is_named_where_it_differs(
    captured: Captured, follower: Callable[..., Follower]
) -> None:
    kept = follower(captured)
    kept.caught_up()
    kept.stop()

    captured.execute("UPDATE things SET name = 'later' WHERE id = 7")
    with pytest.raises(NotCaughtUpError) as late:
        verify(kept.spec, stores=[Store.CACHE], deadline_s=0.5)

    assert "_things in cache" in str(late.value.detail)
    with psycopg.connect(captured.database, autocommit=True) as connection:
        places = [(plan.name, store) for plan in kept.spec.plans for store in plan.to]
        positions.publish(connection, kept.spec.config.source, places, Lsn(2**60))
    found = wrong(verify(kept.spec, stores=[Store.CACHE]))  # now it says it has what it has not
    (report,) = found.values()
    assert [("7", KeyVerdict.DIFFERENT, ("name",))] == [
        (each.key, each.verdict, each.columns) for each in report.findings
    ]


def test_what_another_session_does_not_see_yet_is_no_difference(
    captured: Captured, follower: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that waits for a replica is in the log, and so in the views, but not to be seen."""
    monkeypatch.setattr(truth, "_WRITERS_S", 0.5)
    kept = follower(captured)
    kept.caught_up()
    stop = threading.Event()

    def commit() -> None:
        with psycopg.connect(captured.database, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("UPDATE things SET name = 'unseen' WHERE id = 9")
        stop.set()

    with psycopg.connect(captured.database, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        admin.execute("ALTER SYSTEM SET synchronous_commit = local")
        admin.execute("SELECT pg_reload_conf()")
        waiting = threading.Thread(target=commit)
        try:
            while admin.execute("SHOW synchronous_standby_names").fetchone()[0] != "nobody":
                stop.wait(0.01)
            waiting.start()
            client = redis.Redis.from_url(kept.spec.config.cache_url)
            key = f"{kept.spec.config.addresses.cache_prefix}{kept.spec.plans[0].name}:9"
            while b"unseen" not in (client.get(key) or b""):
                stop.wait(0.01)
            assert not stop.is_set()

            reports = verify(kept.spec, views=[kept.spec.plans[0].name], stores=[Store.CACHE])
        finally:
            admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
            admin.execute("ALTER SYSTEM RESET synchronous_commit")
            admin.execute("SELECT pg_reload_conf()")
            waiting.join(30)
    assert [(True, 1)] == [(report.equal, report.moving) for report in reports]


def test_a_source_that_does_not_answer_is_an_error_by_name(
    captured: Captured, follower: Callable[..., Follower]
) -> None:
    kept = follower(captured)
    kept.caught_up()

    with pytest.raises(VerificationError) as error:
        verify(
            replace(
                kept.spec,
                config=replace(kept.spec.config, source_dsn="postgresql://nobody@127.0.0.1:1/none"),
            )
        )
    assert "the source cannot be read" in error.value.message


def test_views_are_verified_in_the_background_by_turns_and_what_is_found_is_kept(
    captured: Captured, follower: Callable[..., Follower]
) -> None:
    kept = follower(captured)
    kept.caught_up()
    background = BackgroundVerification(lambda: kept.spec, 1.0, threading.Event())
    before = end_of(captured.database)

    with writing(captured.database, writers=1):
        looked_at = [background.look()[0].view for _ in range(3)]

    views = [plan.name for plan in kept.spec.plans]
    assert [*views, views[0]] == looked_at
    with psycopg.connect(captured.database, autocommit=True) as connection:
        found = results_table.read(connection, kept.spec.config.source)
        assert {(view, store) for view in views for store in Store} == {
            (each.view, each.store) for each in found
        }
        assert all(each.equal and before < (each.verified_through or Lsn(0)) for each in found)

        kept.caught_up()
        client = redis.Redis.from_url(kept.spec.config.cache_url)
        client.delete(f"{kept.spec.config.addresses.cache_prefix}{views[0]}:300")
        client.close()
        background.look()
        background.look()
        later = {
            (each.view, each.store): each
            for each in results_table.read(connection, kept.spec.config.source)
        }
    earlier = {(each.view, each.store): each for each in found}
    place = views[0], Store.CACHE
    assert (1, False) == (later[place].missing, later[place].equal)
    assert earlier[place].verified_through == later[place].verified_through  # it was, up to there


def test_a_view_that_is_behind_does_not_keep_the_background_from_the_others(
    captured: Captured, follower: Callable[..., Follower]
) -> None:
    kept = follower(captured)
    kept.caught_up()
    kept.stop()
    things, visits = (plan.name for plan in kept.spec.plans)
    captured.execute("UPDATE things SET name = 'later' WHERE id = 7")
    with psycopg.connect(captured.database, autocommit=True) as connection:
        come = [(visits, store) for store in Store]
        positions.publish(connection, kept.spec.config.source, come, Lsn(2**60))
    background = BackgroundVerification(lambda: kept.spec, 1.0, threading.Event(), deadline_s=0.2)

    turns = [{report.view for report in background.look()} for _ in range(4)]

    assert [set(), {visits}, set(), {visits}] == turns
    with psycopg.connect(captured.database, autocommit=True) as connection:
        found = results_table.read(connection, kept.spec.config.source)
    assert {(visits, store, True) for store in Store} == {
        (each.view, each.store, each.verified_through is not None) for each in found
    }
    assert things not in {each.view for each in found}


def test_a_store_that_does_not_answer_is_told_and_the_others_are_compared(
    captured: Captured, follower: Callable[..., Follower], gate: Callable[[str], Gate]
) -> None:
    kept = follower(captured)
    kept.caught_up()
    door = gate(kept.spec.config.cache_url)
    spec = replace(kept.spec, config=replace(kept.spec.config, cache_url=door.url))
    door.shut()
    with pytest.raises(SinkUnavailableError):
        verify(spec)

    for views in ([], [spec.plans[0].name], [spec.plans[1].name]):
        left_out: list[Uncompared] = []
        reports = verify(spec, views=views, uncompared=left_out.append)
        names = {plan.name for plan in spec.plans if not views or plan.name in views}
        assert {(name, Store.CACHE, "HW-P011") for name in names} == {
            (each.view, each.store, each.fault.code) for each in left_out
        }
        assert {(name, s, True) for name in names for s in (Store.SEARCH, Store.TABLE)} == {
            (each.view, each.store, each.equal) for each in reports
        }

    background = BackgroundVerification(lambda: spec, 1.0, threading.Event())
    looked_at = [{report.view for report in background.look()} for _ in range(4)]
    assert [{plan.name} for plan in (*spec.plans, *spec.plans)] == looked_at
    door.open()
    assert 6 == len(verify(spec))


def test_a_store_that_ends_amid_a_comparison_is_left_out_from_there_on(
    captured: Captured, follower: Callable[..., Follower], gate: Callable[[str], Gate]
) -> None:
    kept = follower(captured)
    kept.caught_up()
    door = gate(kept.spec.config.cache_url)
    spec = replace(kept.spec, config=replace(kept.spec.config, cache_url=door.url))
    things = spec.plans[0]
    for store in (Store.CACHE, Store.TABLE):  # so that a key of each is looked at again
        with closing(open_sink(store, kept.spec.config.addresses)) as sink:
            sink.apply(things, [RowChange((300,), 1 << 60, None, 1)])
    left_out: list[Uncompared] = []
    reports: list[ViewReport] = []
    verification = JobVerification(spec, Throttle(), uncompared=left_out.append)
    steps = verification.steps(things, sorted(Store), reports)
    with pytest.MonkeyPatch.context() as patch:
        settle = truth.SourceTruth.settle

        def shut(own: truth.SourceTruth) -> bool:
            patch.undo()
            door.shut()
            return settle(own)

        patch.setattr(truth.SourceTruth, "settle", shut)
        for _ in steps:
            pass

    assert [Store.CACHE] == [each.store for each in left_out]
    assert [(Store.SEARCH, 0), (Store.TABLE, 1)] == [(r.store, r.missing) for r in reports]
