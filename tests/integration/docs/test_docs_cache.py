"""The page about the cache is run as it stands, its commands too."""

from __future__ import annotations

import doctest
import json
import re
import shlex
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from cdc.postgres import catalog
from headwater.cli import main
from projections.changes.row_change import RowChange
from projections.definition.registry import load
from projections.planning.view_plan import plan_views
from projections.stores.valkey.sink import CacheSink
from tests.support.project_text import cache_project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "cache.md").read_text()
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, status text, total numeric(12,2),
                     placed_at timestamptz);
CREATE TABLE sessions (id uuid PRIMARY KEY, started_at timestamptz)
"""
ROWS = (
    (1, 7, "open", "10.00"),
    (2, 7, "paid", "20.50"),
    (3, 8, "paid", "99.99"),
)


@pytest.fixture
def cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str, cache_url: str
) -> Iterator[str]:
    """The page's project in this folder, its view of orders in a database of the cache."""
    url = cache_url.removesuffix("/0") + "/3"
    (declared,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "headwater.toml").write_text(cache_project(database, url))
    (tmp_path / "views.py").write_text(declared)
    monkeypatch.chdir(tmp_path)
    views = load(tmp_path / "views.py").views
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES)
        schemas = catalog.describe(connection, [view.table for view in views.values()])
    orders, _ = plan_views(views.values(), schemas)
    sink = CacheSink(url, "shop:")
    sink.prepare(orders)
    sink.apply(orders, [_change(*row) for row in ROWS])
    sink.close()
    with redis.Redis.from_url(url) as client:
        assert client.delete("shop:_building:orders")  # as the job does after the first read
        yield url
        client.flushdb()


def _change(number: int, customer: int, status: str, total: str) -> RowChange:
    row = {"id": number, "customer_id": customer, "status": status, "total": Decimal(total)}
    row["placed_at"] = datetime(2026, 1, number, tzinfo=UTC)
    return RowChange((number,), (1 << 56) + number, row, 1)


def test_every_example_of_the_page_does_what_it_shows(cache: str) -> None:
    examples = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE, re.DOTALL))
    found = doctest.DocTestParser().get_doctest(examples, {"CACHE": cache}, "cache.md", "", 0)
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(found, out=told.append)

    assert [] == told
    assert len(found.examples) == done.attempted > 10


def test_every_command_of_the_page_runs(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    (commands,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    said = {}
    for line in commands.splitlines():
        words = shlex.split(line)[2:]
        assert 0 == main(words)
        assert capsys.readouterr().out
        assert 0 == main([*words, "--json"])
        said[" ".join(words)] = json.loads(capsys.readouterr().out)

    assert "20.50" == said["cache get orders 2"]["total"]
    assert ["1", "2"] == [row["key"] for row in said["cache lookup orders customer:7:orders"]]
    assert 4 == len(said["cache count orders"])
    counted = {"counter": "revenue:7", "rows": 2, "sum": "30.50"}
    assert [counted] == said["cache count orders revenue:7"]
    assert ["3", "2"] == [row["key"] for row in said["cache top orders largest --limit 2"]]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("get orders 99", 1),
        ("get nothing 1", 2),
        ("lookup orders nothing:1", 2),
        ("count orders nothing", 2),
        ("top orders nothing", 2),
        ("lookup orders", 0),
        ("top orders", 0),
        ("top orders latest:8 --lowest", 0),
    ],
)
def test_what_is_not_there_is_told_by_the_exit_code(
    cache: str, words: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code == main(["cache", *shlex.split(words), "--json"])
    json.loads(capsys.readouterr().out)


def test_a_view_that_is_being_built_says_so(cache: str, capsys: pytest.CaptureFixture[str]) -> None:
    with redis.Redis.from_url(cache) as client:
        client.set("shop:_building:orders", "rebuilt")

    assert 0 == main(["cache", "get", "orders", "1"])
    assert "is being built" in capsys.readouterr().err


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_doctor_warns_of_a_cache_that_evicts(
    cache: str, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with redis.Redis.from_url(cache) as client:
        client.config_set("maxmemory-policy", policy)
        try:
            main(["doctor", "--json"])
        finally:
            client.config_set("maxmemory-policy", "noeviction")

    checks = {check["name"]: check["state"] for check in json.loads(capsys.readouterr().out)}
    assert {"noeviction": "ok", "allkeys-lru": "warn"}[policy] == checks["cache policy"]
