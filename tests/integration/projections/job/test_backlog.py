"""Spark reports after each batch of a topic how many records are left."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec
from projections.job.backlog import unread_records
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

RECORDS, BATCH = 100, 30


@pytest.fixture
def topic(kafka_bootstrap: str) -> Iterator[str]:
    from kafka import KafkaProducer

    name = f"backlog_{uuid.uuid4().hex[:8]}"
    topics.ensure(kafka_bootstrap, [TopicSpec(name)])
    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all")
    for each in [producer.send(name, b"record") for _ in range(RECORDS)]:
        each.get(LONG_S)
    producer.close()
    yield name
    topics.delete(kafka_bootstrap, [name])


def test_each_batch_leaves_fewer_records(
    spark: SparkSession, kafka_bootstrap: str, topic: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka_bootstrap)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    records = reader.option("maxOffsetsPerTrigger", BATCH).load()
    sizes: list[int] = []

    query = (
        records.writeStream.foreachBatch(lambda batch, _: sizes.append(batch.count()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(LONG_S))

    assert [30, 30, 30, 10] == sizes
    progress = [each for each in query.recentProgress if each.numInputRows]
    assert [70, 40, 10, 0] == [unread_records(each) for each in progress]
