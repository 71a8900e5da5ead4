"""Damage of views made from others is named, and the job that keeps them makes them whole."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
import redis
from deltalake import DeltaTable, write_deltalake

from projections.definition.registry import load
from projections.definition.views import Store
from projections.errors import RepairRefusedError
from projections.job.batch.verify_derived import verify_derived
from projections.publishing.published_versions import Published
from projections.stores.opensearch.client import SearchEngine
from projections.verification.background import BackgroundVerification
from projections.verification.derived_checks import Checks
from projections.verification.repair import repair
from projections.verification.report import KeyVerdict
from projections.verification.requests import Renewals
from projections.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from projections.verification.report import ViewReport
    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(2400),
]

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, status text, kind int, total numeric(12,2) NOT NULL);
INSERT INTO orders SELECT n, 'status ' || n % 8, n % 7, n FROM generate_series(1, 112) n
"""
VIEWS = """
from headwater import CacheOptions, source, view

shop = source("{name}", tables=["public.orders"])
orders = view.mirror("{name}_orders", shop.orders, to=["table"])
view.aggregate(
    "{name}_by_status",
    orders,
    by=["status"],
    count="orders",
    sums={{"total": "total"}},
    cache=CacheOptions(leaderboards={{"most": "total"}}, counters={{"of:{{orders}}": "total"}}),
)
view.aggregate("{name}_by_kind", orders, by=["kind"], count="orders")
"""


@pytest.fixture
def captured(database: str, capture: Callable[..., Captured]) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
    return capture("public.orders")


@pytest.fixture
def job(captured: Captured, view_job: Callable[..., ViewJob], tmp_path: Path) -> ViewJob:
    module = tmp_path / "project" / "views.py"
    module.parent.mkdir()
    module.write_text(VIEWS.format(name=captured.spec.name))
    declared = load(module)
    views, derived = list(declared.views.values()), tuple(declared.derived.values())
    return view_job(captured, views=views, derived=derived, own_jvm=True)


def test_damage_of_a_view_made_from_others_is_named_and_repaired_by_the_job(
    job: ViewJob, captured: Captured
) -> None:
    job.start()
    assert [] == job.catch_up()
    by_status, by_kind = (f"{job.spec.config.source}_{end}" for end in ("by_status", "by_kind"))
    damage_table(job, by_status)
    damage_index(job, by_kind)
    damage_cache(job, by_status)

    found = wrong(job)

    # in the background the job looks at the tables, one at a time
    background = BackgroundVerification(job.bound, 1.0, threading.Event())
    looks = [background.look() for _ in range(5)]
    seen = {(each.view, each.store): each.equal for look in looks for each in look}
    assert found.keys() == {place for place, equal in seen.items() if not equal}
    assert 7 == len(seen)
    assert [] == Checks(job.spec.config).asked()

    tampered = found[by_status, Store.TABLE]
    assert {
        ("status 1", KeyVerdict.DIFFERENT, ("orders",)),
        ("status 2", KeyVerdict.MISSING, ()),
        ("status 3", KeyVerdict.DUPLICATED, ()),
        ("status 99", KeyVerdict.EXTRA, ()),
    } == {(each.key, each.verdict, each.columns) for each in tampered.findings}
    counts = tampered.missing, tampered.extra, tampered.different, tampered.duplicated
    assert (1, 2, 1, 1) == counts
    assert "row status 1 (different in orders)" in tampered.examples
    assert ("orders",) == tampered.columns
    beside = found[by_status, Store.CACHE]
    assert any("most" in example for example in beside.examples)
    assert {("1", KeyVerdict.DIFFERENT), ("2", KeyVerdict.MISSING), ("99", KeyVerdict.EXTRA)} == {
        (each.key, each.verdict) for each in found[by_kind, Store.SEARCH].findings
    }

    done = repair(captured.spec, job.bound(), list(found.values()), verify_derived)

    assert found.keys() == {(each.view, each.store) for each in done}
    assert [(0, each.asked) for each in done] == [(each.wrong, each.cured) for each in done]
    assert {} == wrong(job)

    # what is asked for stays until it is done, whoever is killed meanwhile
    job.kill()
    assert [] == job.orphans()
    damage_index(job, by_kind)
    bad = [each for each in found.values() if each.view == by_kind]
    with pytest.raises(RepairRefusedError, match="no job runs"):
        repair(captured.spec, stopped(job), bad, verify_derived)
    Renewals(job.spec.config).ask(by_kind, [Store.SEARCH])
    job.start()
    job.wait(lambda _: Renewals(job.spec.config).of_view(by_kind) is None)

    assert [] == job.catch_up()
    assert {} == wrong(job)
    assert 0 == job.stop()


def wrong(job: ViewJob) -> dict[tuple[str, Store], ViewReport]:
    spec = job.bound()
    reports = [*verify(spec), *verify_derived(spec)]
    assert 7 == len(reports)  # each of two in three stores, and the mirror
    return {(each.view, each.store): each for each in reports if not each.equal}


def stopped(job: ViewJob) -> Any:
    """The job as it says of itself that it is when it was stopped."""
    job.spec.config.status_file.write_text('{"state": "stopped", "at": 0}')
    return job.bound()


def damage_table(job: ViewJob, view: str) -> None:
    """Alters a row, takes one out, doubles one, and adds one; then readers have it so."""
    table = DeltaTable(str(job.spec.config.addresses.tables / view))
    rows = table.to_pyarrow_table()
    row = {each["status"]: each for each in rows.to_pylist()}
    table.update(updates={"orders": "999"}, predicate="status = 'status 1'")
    table.delete("status = 'status 2'")
    more = [row["status 3"], {**row["status 1"], "status": "status 99"}]
    write_deltalake(table, pa.Table.from_pylist(more, schema=rows.schema), mode="append")
    damaged = DeltaTable(str(job.spec.config.addresses.tables / view)).version()

    def readable(_: Any) -> bool:
        latest = Published(job.spec.config.addresses.tables, job.spec.config.source).latest()
        return latest is not None and latest.views[view].version >= damaged

    job.wait(readable)
    assert [] == [each for each in job.catch_up() if each.store is Store.SEARCH]


def damage_index(job: ViewJob, view: str) -> None:
    with closing(SearchEngine(job.spec.config.search_url)) as engine:
        index = f"{view}-v1"
        found = engine.request("GET", f"/{index}/_doc/1")
        same = f"version={found['_version']}&version_type=external_gte&refresh=true"
        other = {**found["_source"], "orders": 999}
        engine.request("PUT", f"/{index}/_doc/1?{same}", other)
        engine.request("PUT", f"/{index}/_doc/99?{same}", {**other, "kind": 99})
        engine.request("DELETE", f"/{index}/_doc/2?{same}")


def damage_cache(job: ViewJob, view: str) -> None:
    prefix = job.spec.config.addresses.cache_prefix
    with closing(redis.Redis.from_url(job.spec.config.cache_url)) as client:
        assert client.delete(f"{prefix}{view}:status 4")
        assert client.zincrby(f"{prefix}_leaderboard:{view}:most", 7, "status 5")
        (counter, *_) = sorted(client.scan_iter(f"{prefix}_counter:{view}:*"))
        client.hincrby(counter, "sum", 3)
