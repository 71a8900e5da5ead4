"""Derived views beside a store that is down, and one that has lost what it was given."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.lsn import Lsn
from projections.definition.registry import load
from projections.definition.views import Store
from projections.errors import SinkUnavailableError
from projections.publishing import positions
from projections.stores.opensearch.client import SearchEngine
from projections.stores.valkey.client import CacheServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_gate import Gate
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=3),
    pytest.mark.timeout(1800),
]

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, status text, kind int, total numeric(12,2) NOT NULL);
INSERT INTO orders SELECT n, 'status ' || n % 5, n % 7, n FROM generate_series(1, 100) n
"""
VIEWS = """
from headwater import source, view

shop = source("{name}", tables=["public.orders"])
orders = view.mirror("{name}_orders", shop.orders, to=["table"])
view.aggregate("{name}_by_status", orders, by=["status"], count="orders", sums={{"total": "total"}})
view.aggregate("{name}_by_kind", orders, by=["kind"], count="orders")
"""


@pytest.fixture
def derived_job(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
    tmp_path: Path,
) -> Callable[..., ViewJob]:
    def make(**settings: Any) -> ViewJob:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(TABLES)
        captured = capture("public.orders")
        module = tmp_path / "project" / "views.py"
        module.parent.mkdir()
        module.write_text(VIEWS.format(name=captured.spec.name))
        declared = load(module)
        views = list(declared.views.values())
        derived = tuple(declared.derived.values())
        return view_job(captured, views=views, derived=derived, **settings)

    return make


@pytest.mark.parametrize(("down", "beside"), [("search", "cache"), ("cache", "search")])
def test_a_store_that_is_down_holds_up_its_own_derived_views_and_no_other(
    derived_job: Callable[..., ViewJob],
    gate: Callable[[str], Gate],
    request: pytest.FixtureRequest,
    down: str,
    beside: str,
) -> None:
    door = gate(request.getfixturevalue(f"{down}_url"))
    job = derived_job(**{f"{down}_url": door.url})
    view, idle = f"{job.spec.config.source}_by_status", f"{job.spec.config.source}_by_kind"
    job.start()
    assert [] == job.catch_up()
    door.shut()

    change(job, "UPDATE orders SET total = total + 1 WHERE id <= 50")
    change(job, "UPDATE orders SET status = 'status 8' WHERE status = 'status 3'")
    now = end_of_log(job)
    await_position(job, view, Store(beside), now)
    await_position(job, view, Store.TABLE, now)
    for each in (view, idle):
        job.wait(lambda _, each=each: fault(job, each, down) == SinkUnavailableError.code)

    assert fault(job, view, beside) is None
    assert position(job, view, Store(down)) < now
    assert "ready" == job.status()["state"]
    door.open()
    assert [] == job.catch_up()
    job.wait(lambda _: fault(job, view, down) is None and fault(job, idle, down) is None)
    assert 0 == job.stop()


def test_what_a_store_has_lost_of_a_view_that_does_not_change_is_given_anew(
    derived_job: Callable[..., ViewJob], search_url: str, cache_url: str
) -> None:
    job = derived_job()
    name = job.spec.config.source
    job.start()
    assert [] == job.catch_up()
    with closing(SearchEngine(search_url)) as engine:
        engine.request("DELETE", f"/{name}_by_status-v1")

        # nothing is asked of an index that is not there: the alias comes back with it
        job.wait(lambda _: count(engine, f"{name}_by_status") == 5)

        assert 7 == count(engine, f"{name}_by_kind")
    with closing(CacheServer(cache_url, job.spec.config.addresses.cache_prefix)) as server:
        server.client.delete(*server.client.scan_iter(match=f"{name}:*"))

        job.wait(lambda _: len(list(server.client.scan_iter(match=f"{name}:{name}_by*"))) == 12)
    assert [] == job.catch_up()
    assert 0 == job.stop()


def count(engine: SearchEngine, alias: str) -> int:
    found = engine.request("GET", f"/_cat/aliases/{alias}?format=json")
    return int(engine.request("GET", f"/{alias}/_count")["count"]) if found else 0


def change(job: ViewJob, statement: str) -> None:
    with psycopg.connect(job.spec.config.source_dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def end_of_log(job: ViewJob) -> Lsn:
    with psycopg.connect(job.spec.config.source_dsn) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    assert row is not None
    return Lsn.parse(row[0])


def await_position(job: ViewJob, view: str, store: Store, lsn: Lsn) -> None:
    job.wait(lambda _: position(job, view, store) >= lsn)


def position(job: ViewJob, view: str, store: Store) -> Lsn:
    with psycopg.connect(job.spec.config.source_dsn) as connection:
        found = positions.read(connection)
    places = {(each.view, each.store): each.applied_through for each in found}
    return places.get((view, store), Lsn(0))


def fault(job: ViewJob, view: str, store: str) -> str | None:
    """The code of what keeps a view out of a store."""
    error = json.loads(job.spec.config.derived_file.read_bytes())[view]["stores"][store]["error"]
    return None if error is None else str(error["code"])
