"""A checkpoint that is another query's, damaged, or of another topic: noticed, and nothing lost."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc.broker.client.admin import admin
from cdc.broker.topics import extent, topics
from projections.common import spark_checkpoint
from projections.definition.views import Store
from projections.errors import CheckpointForeignError, CheckpointTornError, RecordsLostError
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=2),
    pytest.mark.timeout(1800),
]


@pytest.fixture
def captured(capture: Callable[..., Captured], database: str) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO items SELECT n, 'first' FROM generate_series(1, 20) n")
    return capture("public.items")


def refused(job: ViewJob) -> dict[str, Any]:
    """Starts a job that refuses to go on; returns its error."""
    job.start()
    assert job.process is not None
    assert 1 == job.process.wait(240)
    assert "failed" == job.status()["state"]
    error: dict[str, Any] = job.status()["error"]
    assert not error["retriable"]
    return error


def test_a_checkpoint_of_another_query_is_refused_and_a_damaged_one_healed(
    captured: Captured, view_job: Callable[..., ViewJob]
) -> None:
    job = view_job(captured, to=("table", "cache"))
    cache, table = job.spec.config.checkpoint(Store.CACHE), job.spec.config.checkpoint(Store.TABLE)
    job.start()
    assert [] == job.catch_up()
    assert 0 == job.stop()
    captured.execute("UPDATE items SET note = 'second' WHERE id > 10")

    own = cache.rename(cache.with_name(".own"))
    shutil.copytree(table, cache)
    error = refused(job)
    assert CheckpointForeignError.code == error["code"]
    assert f"{cache}: it belongs to query table" in error["detail"]

    shutil.rmtree(cache)
    own.rename(cache)
    for file in sorted((cache / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))[-1:]:
        file.write_bytes(b"")  # as after a power cut
    (table / "metadata").write_bytes(b"\0" * 40)
    captured.execute("DELETE FROM items WHERE id = 3", "INSERT INTO items VALUES (21, 'third')")
    job.start()
    assert [] == job.catch_up()
    assert 0 == job.stop()


def test_offsets_of_another_topic_of_that_name_are_told(
    captured: Captured, view_job: Callable[..., ViewJob]
) -> None:
    from kafka import TopicPartition

    bootstrap, topic = captured.spec.kafka_bootstrap, f"{captured.spec.name}.public.items"
    job = view_job(captured, to=("cache",))
    cache = job.spec.config.checkpoint(Store.CACHE)
    job.start()
    assert [] == job.catch_up()
    assert 0 == job.stop()
    at = spark_checkpoint.committed(cache)[topic, 0]

    own = shutil.copytree(cache, cache.with_name(".own"))
    last = max(int(path.name) for path in (cache / "offsets").glob("[0-9]*"))
    file = cache / "offsets" / str(last)
    file.write_text(file.read_text().replace(f'"{topic}":{{"0":{at}}}', f'"{topic}":{{"0":9999}}'))
    file.with_name(f".{file.name}.crc").unlink()
    (cache / "commits" / str(last)).write_bytes((own / "commits" / "0").read_bytes())
    error = refused(job)
    assert RecordsLostError.code == error["code"]
    assert f"topic {topic}, partition 0" in error["detail"]
    assert "wanted offset 9999" in error["detail"]

    shutil.rmtree(cache)
    shutil.copytree(own, cache)
    for damaged in (cache / "offsets").glob("[0-9]*"):
        damaged.write_bytes(b"garbage")
    with admin(bootstrap) as client:
        client.delete_records({TopicPartition(topic, 0): 3})
    error = refused(job)
    assert CheckpointTornError.code == error["code"]
    assert str(cache / "offsets") in error["detail"]

    shutil.rmtree(cache)
    own.rename(cache)
    anew(bootstrap, topic, at + 5)  # where the query stands there are records, but others
    error = refused(job)
    assert RecordsLostError.code == error["code"]
    assert f"topic {topic} was recreated" in error["detail"]


def anew(bootstrap: str, topic: str, records: int) -> None:
    """Deletes a topic and makes it again with so many records, which nothing can be made of."""
    from kafka import KafkaProducer

    topics.delete(bootstrap, [topic])
    wait_until(lambda: topic not in topics.names(bootstrap), f"topic {topic} to go")
    topics.ensure(bootstrap, [topics.TopicSpec(topic)])
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in range(records):
        producer.send(topic, key=b"%d" % number, value=b"{}", partition=0)
    producer.close()
    assert records <= extent.bounds(bootstrap, [topic])[topic, 0][1]
