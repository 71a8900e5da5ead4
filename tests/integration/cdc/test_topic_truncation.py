"""A topic that is cut off loses the files before the cut, and is seen to while it is written to."""

from __future__ import annotations

import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cdc.broker.topics import topics, truncation
from cdc.broker.topics.topics import TopicSpec
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

RECORD = b"x" * 10_000
FORMER = 30
"""Records before the cut: mostly fewer bytes than are written until a broker removes them."""


@pytest.fixture
def topic(kafka_bootstrap: str) -> Iterator[str]:
    name = f"cut_{uuid.uuid4().hex[:8]}"
    topics.ensure(kafka_bootstrap, [TopicSpec(name, configs={"segment.ms": "100"})])
    yield name
    topics.delete(kafka_bootstrap, [name])


@contextmanager
def written(producer: Any, topic: str) -> Iterator[None]:
    """Has records written to a topic as long as the block runs."""
    stopped = threading.Event()

    def write() -> None:
        while not stopped.wait(0.1):
            producer.send(topic, RECORD).get(LONG_S)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopped.set()
        writer.join(LONG_S)


def test_files_before_a_cut_are_seen_to_go_while_more_is_written_than_was_removed(
    kafka_bootstrap: str, topic: str
) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all")
    for _ in range(FORMER):
        producer.send(topic, RECORD).get(LONG_S)
    place = topic, 0
    with (
        written(producer, topic),
        truncation.files_go_at_once(kafka_bootstrap, topic),
        truncation.removal(kafka_bootstrap, {place}) as await_removed,
    ):
        truncation.cut_off(kafka_bootstrap, {place: FORMER})
        left = await_removed(LONG_S)
    producer.close()

    assert frozenset() == left
