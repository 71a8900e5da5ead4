"""A view is rebuilt while traffic runs; and the demo's comparison can fail."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import opensearchpy
import psycopg
import pyarrow.compute as pc
import pytest
import redis
from deltalake import DeltaTable
from rich.console import Console

from cdc.position_token import PositionToken
from headwater.demo.demo import run_demo
from headwater.demo.options import DemoOptions
from headwater.demo.result import STORES
from headwater.reading.views import Views
from projections.publishing.read_barrier import BehindError, ChangeStage
from tests.fix_demo import HISTORIES, VIEWS

if TYPE_CHECKING:
    from headwater.demo.reader import ViewEndpoints
    from headwater.platform.platform import Platform

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=10),
    pytest.mark.timeout(2400),
]


def test_readers_are_moved_twenty_times_unnoticed_and_tampered_rows_turn_the_demo_red(
    demo_home,
):
    """Whoever builds it, some of those who move readers, and the job are killed on the way.

    Then somebody writes, and reads what was written in every store; and a row is taken out, one put
    in, one changed, a counter changed: each is found where it was, and nothing else.
    """
    options = DemoOptions(seconds=10.0, rate=50.0, scale=0.2, rebuild=True, home=demo_home)

    result = run_demo(options, Console(file=io.StringIO()), before_comparison=write_and_tamper)

    assert not result.verified
    assert {
        ("orders", "cache"): (1, 0, 1),
        ("customers", "cache"): (0, 0, 1),
        ("products", "search"): (0, 1, 0),
        ("orders_history", "table"): (1, 0, 0),
    } == {
        (v.view, v.store): (v.missing, v.extra, v.different) for v in result.views if not v.agrees
    }
    found = result.to_json()
    rebuilt = found["rebuilt"]
    assert set(STORES) == set(rebuilt["watched"])
    for store, seen in rebuilt["watched"].items():
        assert seen["reads"] > 100, store
        assert (0, 0, 0) == (seen["errors"], seen["empties"], seen["steps_back"]), (store, seen)
    assert (2, "inventory") == (rebuilt["version"], rebuilt["view"])
    assert rebuilt["switches"] >= 20
    assert rebuilt["killed"] >= 1
    assert 1 == rebuilt["builds_killed"]
    assert "spark" == rebuilt["job_killed"]["killed"]
    assert 0 < rebuilt["job_killed"]["back_after_s"]
    for when in ("building", "switching"):
        assert all(rebuilt[when][store]["samples"] > 0 for store in STORES), when
    assert 0 == found["mended"]["left"]
    assert found["forgotten"]["complete"]


def write_and_tamper(stack: Platform, places: ViewEndpoints) -> None:
    with Views(stack) as views:
        read_own_writes(views, stack.source_dsn)
    tamper(places)


def read_own_writes(views: Views, dsn: str) -> None:
    customers, card, products = views["customers"], views["customer_card"], views["products"]
    with psycopg.connect(dsn) as source:
        number, sku = source.execute(
            "SELECT (SELECT id FROM customers ORDER BY id LIMIT 1), (SELECT min(sku) FROM products)"
        ).fetchone()
        for name in ("Ada Byron", "Ada King", "Ada Lovelace"):
            source.execute("UPDATE customers SET full_name = %s WHERE id = %s", (name, number))
            source.commit()
            token = views.token(source)
            assert name == customers.read(number, at_least=token, timeout_s=60)["full_name"]
        source.execute("UPDATE products SET name = 'Analytical engine' WHERE sku = %s", (sku,))
        source.commit()
        token = PositionToken.parse(str(views.token(source)))
        found = products.search("analytical engine", at_least=token, timeout_s=60)
        assert sku == found.hits[0].key
        sql = "SELECT full_name FROM customers ORDER BY id LIMIT 1"
        rows = views.query(sql, at_least=token, timeout_s=60).to_pylist()
        assert [{"full_name": name}] == rows
        assert name == card.read(number, at_least=token, timeout_s=60)["full_name"]
        for view in VIEWS | HISTORIES:
            views[view].wait_for(token, timeout_s=60)

        source.execute("UPDATE customers SET full_name = full_name WHERE id = %s", (number,))
        source.commit()
        later = views.token(source)
    with pytest.raises(BehindError) as late:
        customers.wait_for(later, timeout_s=0)
    assert {ChangeStage.BATCH, ChangeStage.CAPTURE} >= {each.stage for each in late.value.late}
    read = customers.read(number, at_least=later, timeout_s=0, otherwise=lambda: "folded")
    assert "folded" == read


def tamper(places: ViewEndpoints) -> None:
    with redis.Redis.from_url(places.cache_url) as cache:
        cache.delete(next(cache.scan_iter(f"{places.cache_prefix}orders:*")))
        key = next(cache.scan_iter(f"{places.cache_prefix}customers:*"))
        row = json.loads(cache.get(key))
        cache.set(key, json.dumps(row | {"full_name": "Mallory"}))
        counter = next(cache.scan_iter(f"{places.cache_prefix}_counter:orders:orders:*"))
        cache.hincrby(counter, "rows", 1)
    body = {"sku": "FORGED", "name": "forged", "price": "1.00", "active": True}
    with opensearchpy.OpenSearch(hosts=[places.search_url]) as search:
        search.index(index="products-v1", id="FORGED", body=body, refresh=True)
    # no view is made from this one: the job goes on, and would make that from what is left
    history = DeltaTable(places.tables / "orders_history")
    one = history.to_pyarrow_dataset().head(1, filter=pc.field("is_current"))["id"][0].as_py()
    history.delete(f"is_current AND id = '{one}'")
