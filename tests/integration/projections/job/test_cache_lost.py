"""A cache that has forgotten something is noticed, and its views are read anew."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from projections.definition.cache_options import CacheOptions
from projections.definition.views import MirrorView, Store
from projections.errors import CacheLostError
from projections.stores.valkey.epoch import CacheEpoch
from projections.stores.valkey.reader import CacheReader, Count
from tests.fix_capture import reading
from tests.oracles.sink_contract import make_plan
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = pytest.mark.integration

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total numeric(12,2), note text);
INSERT INTO orders SELECT n, n % 5, n, repeat('note', 900) FROM generate_series(1, 60) n
"""
OPTIONS = CacheOptions(
    lookups=["customer:{customer_id}:orders"],
    counters={"revenue:{customer_id}": "total"},
    leaderboards={"largest": "total"},
)


@pytest.fixture
def prefix() -> str:
    return f"e{secrets.token_hex(4)}:"


@pytest.fixture
def client(cache_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(cache_url) as client:
        yield client


@pytest.fixture
def epoch(cache_url: str, prefix: str, tmp_path: Path) -> Iterator[CacheEpoch]:
    epoch = CacheEpoch(cache_url, prefix, tmp_path / "cache.epoch")
    yield epoch
    epoch.close()


def test_beats_go_on_and_a_job_that_starts_again_knows_them(
    cache_url: str, prefix: str, tmp_path: Path
) -> None:
    epoch = CacheEpoch(cache_url, prefix, tmp_path / "cache.epoch")
    for _ in range(3):
        epoch.beat()
    assert epoch.look() is None
    epoch.close()

    again = CacheEpoch(cache_url, prefix, tmp_path / "cache.epoch")

    again.beat()
    assert again.look() is None
    again.close()


def test_a_beat_that_the_job_had_no_time_to_note_is_no_loss(
    cache_url: str, prefix: str, client: redis.Redis, tmp_path: Path
) -> None:
    epoch = CacheEpoch(cache_url, prefix, tmp_path / "cache.epoch")
    epoch.beat()
    client.hincrby(f"{prefix}_epoch", "beat", 1)

    assert epoch.look() is None
    epoch.beat()
    epoch.close()


def test_a_torn_memory_is_relied_on_by_nobody(
    cache_url: str, prefix: str, epoch: CacheEpoch, tmp_path: Path
) -> None:
    epoch.beat()
    (tmp_path / "cache.epoch").write_bytes(b"")

    again = CacheEpoch(cache_url, prefix, tmp_path / "cache.epoch")

    assert again.look() is not None
    again.renew([])
    again.beat()
    again.close()


@pytest.mark.parametrize("damage", ["emptied", "behind", "another"])
def test_what_is_lost_is_noticed_until_it_is_begun_anew(
    cache_url: str, prefix: str, client: redis.Redis, tmp_path: Path, damage: str
) -> None:
    file, plan = tmp_path / "cache.epoch", make_plan()
    epoch = CacheEpoch(cache_url, prefix, file)
    for _ in range(4):
        epoch.beat()
    {
        "emptied": lambda: client.delete(f"{prefix}_epoch"),
        "behind": lambda: client.hincrby(f"{prefix}_epoch", "beat", -1),
        "another": lambda: client.hset(f"{prefix}_epoch", "id", "other"),
    }[damage]()

    with pytest.raises(CacheLostError):
        epoch.beat()
    assert epoch.lost.is_set()
    epoch.close()
    again = CacheEpoch(cache_url, prefix, file)
    assert again.look() is not None
    again.renew([plan])

    assert not again.lost.is_set()
    again.beat()
    assert client.exists(f"{prefix}_building:{plan.name}")
    again.built(plan)
    assert not client.exists(f"{prefix}_building:{plan.name}")
    again.close()


@pytest.mark.parametrize(
    ("policy", "lost"), [("noeviction", False), ("volatile-lru", False), ("allkeys-lru", True)]
)
def test_rows_that_were_evicted_are_missed_once(
    epoch: CacheEpoch, monkeypatch: pytest.MonkeyPatch, policy: str, lost: bool
) -> None:
    facts = epoch._facts()._replace(policy=policy)
    monkeypatch.setattr(epoch, "_facts", lambda: facts._replace(evicted=facts.evicted + 3))
    epoch._begin("me", 1, facts)

    assert lost is bool(epoch.look())
    if lost:
        epoch.renew([])
        monkeypatch.setattr(epoch, "_facts", lambda: facts._replace(evicted=facts.evicted + 9))
        assert epoch.look() is None  # for ten minutes


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.soak(minutes=2)
def test_a_job_reads_anew_what_its_cache_has_lost(
    database: str,
    capture: Callable[..., Captured],
    view_job: Callable[..., ViewJob],
    client: redis.Redis,
    cache_url: str,
) -> None:
    """Emptied while the job runs, put back to an earlier state while it does not, laid out anew."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(ORDERS)
    captured = capture("orders")
    source = captured.spec.name
    view = MirrorView(
        f"{source}_orders", source, captured.spec.tables[0], (), frozenset({Store.CACHE})
    )
    job = view_job(captured, views=[_with(view, OPTIONS)])
    prefix = job.spec.config.addresses.cache_prefix
    with reading(captured):
        job.start()
        assert [] == job.catch_up()
        _await_built(cache_url, prefix, view.name)
        earlier = {key: client.dump(key) for key in client.scan_iter(f"{prefix}*")}
        captured.execute("UPDATE orders SET customer_id = 9, total = 0 WHERE id = 5")
        captured.execute("DELETE FROM orders WHERE id = 10")
        assert [] == job.catch_up()

        client.delete(*client.scan_iter(f"{prefix}*"))
        wait_until(lambda: client.exists(f"{prefix}{view.name}:7") == 1, timeout_s=LONG_S)
        captured.execute("UPDATE orders SET total = total + 1 WHERE id = 7")
        assert [] == job.catch_up()
        _await_built(cache_url, prefix, view.name)
        _check(cache_url, prefix, view.name)
        assert 0 == job.stop()

        client.delete(*client.scan_iter(f"{prefix}*"))
        for key, value in earlier.items():
            client.restore(key, 0, value)
        again = view_job(captured, views=[_with(view, OPTIONS)])
        again.start()
        assert [] == again.catch_up()
        _await_built(cache_url, prefix, view.name)
        _check(cache_url, prefix, view.name)
        assert 0 == again.stop()

        hashed = CacheOptions("hash", None, OPTIONS.lookups, OPTIONS.counters, OPTIONS.leaderboards)
        last = view_job(captured, views=[_with(view, hashed)])
        last.start()
        assert [] == last.catch_up()
        _await_built(cache_url, prefix, view.name)
        _check(cache_url, prefix, view.name)
        assert b"hash" == client.type(f"{prefix}{view.name}:7")
        assert 0 == last.stop()


def _with(view: MirrorView, options: CacheOptions) -> MirrorView:
    return MirrorView(view.name, view.source, view.table, (), view.to, cache=options)


def _check(cache_url: str, prefix: str, view: str) -> None:
    with CacheReader(cache_url, prefix, view) as reader:
        assert reader.get(10) is None
        assert ["5"] == reader.lookup("customer:9:orders")
        assert "5" not in reader.lookup("customer:0:orders")
        revenue = sum(n for n in range(1, 61) if n % 5 == 2) + 1
        assert Count(12, revenue) == reader.count("revenue:2")
        assert ["60", "59"] == [rank.key for rank in reader.top("largest", limit=2)]
        assert 59 == len(reader.top("largest"))


def _await_built(cache_url: str, prefix: str, view: str) -> None:
    with CacheReader(cache_url, prefix, view) as reader:
        wait_until(lambda: not reader.building, timeout_s=LONG_S)
