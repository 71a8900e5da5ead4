"""The job keeps every view in every store equal to its source."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import redis
from deltalake import DeltaTable, write_deltalake

from projections.definition.views import Store
from projections.stores.opensearch.client import SearchEngine
from projections.verification.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

ITEMS = """
CREATE TABLE items (
    shop text, number bigint, name text, price numeric(12,2), rate numeric, weight real,
    token uuid DEFAULT gen_random_uuid(), extra jsonb, day date, at_time time,
    noted_at timestamp, placed_at timestamptz DEFAULT now(), blob bytea, big text,
    PRIMARY KEY (shop, number)
);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
CREATE TABLE visits (page text, seconds int);
CREATE TABLE empty (id int PRIMARY KEY);
INSERT INTO items
    (shop, number, name, price, rate, weight, extra, day, at_time, noted_at, blob, big)
SELECT 'a:' || n % 3, n, CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'søster' END,
    n / 100.0, n / 7.0, n / 3.0, '{"b": 1, "a": [1.50, null]}', '2024-02-29', '23:59:59.000001',
    '1969-12-31 23:59:59.999999', '\\x00ff', repeat(n::text, 3000)
FROM generate_series(1, 500) n;
INSERT INTO visits SELECT 'home', n % 5 FROM generate_series(1, 200) n
"""
CHANGES = (
    "UPDATE items SET name = 'changed', price = price + 0.01 WHERE number % 5 = 0",
    "DELETE FROM items WHERE number % 7 = 0",
    "BEGIN; UPDATE items SET name = 'never'; DELETE FROM items WHERE number < 9; ROLLBACK",
    "INSERT INTO items (shop, number, name) VALUES ('a:1', 7, 'again'), ('a\\:', 1, NULL)",
    "UPDATE items SET number = 9000, big = 'small' WHERE number = 11",
    "INSERT INTO visits VALUES ('home', 1), ('home', 1), (NULL, NULL)",
)


@pytest.fixture
def job(
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    database: str,
) -> ViewJob:
    import psycopg

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(ITEMS)
    captured = capture("public.items", "public.visits", "public.empty")
    captured.execute(*CHANGES)
    return view_job(captured, own_jvm=True)


def test_views_follow_their_source_and_a_verification_finds_what_is_wrong(job: ViewJob) -> None:
    job.start()

    assert job.catch_up() == []
    job.wait(lambda said: said["state"] == "ready")
    job.wait(lambda said: said["queries"]["archive"]["running"])
    assert job.stop() == 0
    assert job.orphans() == []
    assert job.status()["state"] == "stopped"
    _damage_every_store(job)
    found = {
        (report.view.split("_", 2)[2], report.store): report
        for report in verify(job.spec, resting=True)
        if not report.equal
    }
    shown = {
        place: (report.missing, report.extra, report.different, report.columns)
        for place, report in found.items()
    }
    assert shown == {
        ("items", Store.CACHE): (1, 1, 1, ("name",)),
        ("items", Store.SEARCH): (1, 0, 0, ()),
        ("items", Store.TABLE): (0, 1, 1, ("name",)),
        ("visits", Store.TABLE): (1, 0, 0, ()),
    }


def _damage_every_store(job: ViewJob) -> None:
    items, visits, _ = job.spec.plans
    prefix = f"{job.spec.config.addresses.cache_prefix}{items.name}"
    with redis.Redis.from_url(job.spec.config.cache_url, decode_responses=True) as cache:
        assert cache.delete(f"{prefix}:a\\:1:1") == 1
        cache.rename(f"{prefix}:a\\:2:2", f"{prefix}:a\\:2:-2")
        row = str(cache.get(f"{prefix}:a\\:2:-2"))
        cache.set(f"{prefix}:a\\:2:2", row)
        cache.set(f"{prefix}:a\\:2:-2", row.replace('"number":2,', '"number":-2,'))
        empty = str(cache.get(f"{prefix}:a\\:1:4"))
        assert '"name":""' in empty
        cache.set(f"{prefix}:a\\:1:4", empty.replace('"name":""', '"name":null'))
    with closing(SearchEngine(job.spec.config.search_url)) as engine:
        engine.request("DELETE", f"/{items.name}-v1/_doc/a%5C:1:1?refresh=true")
    table = DeltaTable(str(job.spec.config.addresses.tables / items.name))
    table.update({"name": "NULL"}, predicate="shop = 'a:1' AND number = 4")
    one = table.to_pyarrow_table().slice(0, 1)
    write_deltalake(table, one, mode="append")
    rows = DeltaTable(str(job.spec.config.addresses.tables / visits.name))
    rows.delete("page IS NULL")
