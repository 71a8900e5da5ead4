from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from cdc import source
from cdc.broker.client.admin import admin
from cdc.broker.producing import last_record
from cdc.broker.topics import extent, topics
from cdc.postgres import session
from cdc.postgres.check import CheckState
from cdc.postgres.errors import PreflightError
from cdc.retention import TopicRetention
from cdc.snapshot import reader, reads
from cdc.table import TableName
from cdc.upkeep import topic_watch
from cdc.upkeep.retention import ReaderState
from cdc.upkeep.topic_watch import look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.upkeep.retention import PartitionReader
    from tests.fix_capture import Captured

pytestmark = pytest.mark.integration

HOUR_MS = 3_600_000
TABLES = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text)",
    "CREATE TABLE whole (id int PRIMARY KEY, note text)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE TABLE narrow (id int PRIMARY KEY, amount int)",
    "CREATE TABLE keyless (note text)",
)
ROWS = "INSERT INTO orders SELECT n, repeat('x', 900) FROM generate_series(1, 300) n"
ORDERS, WHOLE, NARROW, KEYLESS = (
    TableName("public", name) for name in ("orders", "whole", "narrow", "keyless")
)


@pytest.fixture
def shop(capture: Callable[..., Captured], database: str) -> Captured:
    with session.connect(database) as connection:
        for statement in TABLES:
            connection.execute(statement)
        connection.execute(
            "INSERT INTO orders SELECT n, repeat('x', 900) FROM generate_series(1, 300) n"
        )
    return capture("public.orders", "public.whole", "public.narrow", "public.keyless")


def test_apply_gives_topics_that_exist_their_retention_and_takes_it_back(shop: Captured) -> None:
    latest = TopicRetention.parse("latest", HOUR_MS)
    wanted = {NARROW: latest, ORDERS: TopicRetention.parse("2 hours, 1 GB", HOUR_MS)}
    declared = replace(shop.spec, retention=wanted)
    orders, narrow = (shop.spec.table_topics[table] for table in (ORDERS, NARROW))

    source.apply(declared)
    there = topics.find(declared.kafka_bootstrap, [orders, narrow])
    source.apply(shop.spec)
    back = topics.find(declared.kafka_bootstrap, [orders, narrow])

    assert ("delete", str(2 * HOUR_MS), str(10**9)) == picked(
        there[orders].configs, "cleanup.policy", "retention.ms", "retention.bytes"
    )
    assert ("compact", str(HOUR_MS)) == picked(
        there[narrow].configs, "cleanup.policy", "delete.retention.ms"
    )
    assert {"delete"} == {back[name].configs["cleanup.policy"] for name in (orders, narrow)}
    assert not {"retention.bytes", "segment.ms"} & {*back[orders].configs, *back[narrow].configs}


def test_latest_is_refused_without_a_key_and_explained_where_values_may_be_left_out(
    shop: Captured,
) -> None:
    latest = TopicRetention.parse("latest", HOUR_MS)
    declared = replace(shop.spec, retention=dict.fromkeys((ORDERS, WHOLE, NARROW), latest))
    with session.connect(shop.spec.dsn) as connection:
        found = {c.name: c for c in source.checks(connection, declared)}

    assert (CheckState.WARN, CheckState.OK, CheckState.OK) == tuple(
        found[f"retention {table}"].state for table in (ORDERS, WHOLE, NARROW)
    )
    assert "columns note" in (found[f"retention {ORDERS}"].detail or "")
    with pytest.raises(PreflightError) as refused:
        source.apply(replace(shop.spec, retention={KEYLESS: latest}))
    assert "public.keyless" in (refused.value.detail or "")


def test_the_log_is_measured_and_its_readers_are_warned_before_they_fall_off(
    shop: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = shop.spec
    topic = spec.table_topics[ORDERS]
    place = topic, 0
    group = f"group-{spec.name}"
    shop.execute("UPDATE orders SET note = repeat('y', 900)")
    shop.records("orders")
    commit(spec.kafka_bootstrap, group, place, 200)

    calm = look(spec, {"query cache": {place: 250}}, 0.5)
    topics.alter(spec.kafka_bootstrap, topic, {"retention.ms": str(HOUR_MS)})
    monkeypatch.setattr(topic_watch, "time", _later(HOUR_MS / 1000))  # the broker's clock stays
    warned = look(spec, {}, 0.2)
    drop_before(spec.kafka_bootstrap, place, 220)
    after = look(spec, {"query cache": {place: 220}}, 0.2)

    (kept,) = (k for k in calm.kept if k.topic == topic)
    assert 600 <= kept.records
    assert 0 < kept.size_bytes < 2_000_000
    assert kept.bytes_per_second > 0
    assert kept.held_s is not None
    assert 7 * 24 * 3600 == kept.keeps_s
    assert {group: ReaderState.OK, "query cache": ReaderState.OK} == states(calm.readers)
    assert calm.healthy
    assert {group: ReaderState.AT_RISK} == states(warned.readers)
    assert not warned.healthy
    assert {group: ReaderState.LOST, "query cache": ReaderState.AT_RISK} == states(after.readers)
    (lost,) = (r.error() for r in after.readers if r.state is ReaderState.LOST)
    assert f"topic {topic}" in lost.message
    assert "partition 0, wanted offset 200, earliest 220" in (lost.detail or "")


def test_the_time_of_a_record_is_that_of_the_one_a_reader_wants_next(shop: Captured) -> None:
    place = shop.spec.table_topics[ORDERS], 0
    shop.records("orders")
    bootstrap = shop.spec.kafka_bootstrap

    found = extent.extents(bootstrap, [place[0]])[place]
    first = extent.times(bootstrap, {place: found.earliest})
    beyond = extent.times(bootstrap, {place: found.end})

    assert {place: found.oldest_at_s} == first
    assert {} == beyond


def test_a_row_that_was_read_late_is_not_what_compaction_keeps(shop: Captured) -> None:
    """The rows of a read arrive once more, after changes that the read has not seen."""
    from kafka import KafkaProducer

    topic = shop.spec.table_topics[NARROW]
    shop.execute("INSERT INTO narrow SELECT n, n FROM generate_series(1, 3) n")
    reread(shop, NARROW)
    rows = [one for one in everything(shop, topic) if b'"op":"r"' in one.value]
    shop.execute("UPDATE narrow SET amount = 20 WHERE id = 2", "DELETE FROM narrow WHERE id = 3")
    shop.records("narrow")
    late = KafkaProducer(bootstrap_servers=shop.spec.kafka_bootstrap)
    for row in rows:
        late.send(topic, row.value, key=row.key, headers=row.headers, partition=0)
    late.close()

    sent = last_record.settle(shop.spec.kafka_bootstrap, topic, None)
    again = last_record.settle(shop.spec.kafka_bootstrap, topic, None)

    last = {one.key: one.value for one in everything(shop, topic)}
    assert 3 == len(rows)
    assert (2, 0) == (sent, again)
    assert b'"op":"r"' in last[b'{"id":1}']
    assert b'"amount":20' in last[b'{"id":2}']
    assert last[b'{"id":3}'] is None, "its tombstone"


def reread(shop: Captured, table: TableName) -> None:
    with session.connect(shop.database) as connection:
        reads.forget(connection, shop.spec.name, [table])
        reads.ask_initial(connection, shop.spec.name, shop.spec.epoch, [table])
    reader.run(shop.spec)


def everything(shop: Captured, topic: str) -> list[Any]:
    """All records that a topic of one partition has now."""
    _, end = extent.bounds(shop.spec.kafka_bootstrap, [topic])[topic, 0]
    found: list[Any] = []
    shop.read(topic, lambda one: found.append(one) or one.offset == end - 1)
    return found


def _later(seconds: float) -> SimpleNamespace:
    now = time.time
    return SimpleNamespace(time=lambda: now() + seconds, monotonic=time.monotonic, sleep=time.sleep)


def picked(configs: Mapping[str, str], *names: str) -> tuple[str | None, ...]:
    return tuple(configs.get(name) for name in names)


def states(readers: tuple[PartitionReader, ...]) -> dict[str, ReaderState]:
    return {reader.name: reader.state for reader in readers}


def commit(bootstrap: str, group: str, place: tuple[str, int], offset: int) -> None:
    from kafka import KafkaConsumer, TopicPartition
    from kafka.structs import OffsetAndMetadata

    client: Any = KafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    )
    client.assign([TopicPartition(*place)])
    client.commit({TopicPartition(*place): OffsetAndMetadata(offset, "", -1)})
    client.close(autocommit=False)


def drop_before(bootstrap: str, place: tuple[str, int], offset: int) -> None:
    from kafka import TopicPartition

    with admin(bootstrap) as client:
        client.delete_records({TopicPartition(*place): offset})
