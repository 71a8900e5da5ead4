"""A broker that falls silent after it was reached: nobody waits for it for ever, and all say so."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from cdc.broker.client import bounded_consumer
from cdc.broker.client.admin import consumer
from cdc.broker.errors import BrokerUnreachableError
from cdc.broker.group.key_value_topic import KeyValueTopic, read_all
from cdc.broker.reading import span
from cdc.broker.topics import topics
from cdc.broker.topics.offsets import partitions
from cdc.broker.topics.topics import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.runtime import Endpoints

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(600)]

MIB = 1 << 20


@pytest.fixture(scope="module")
def kafka_bootstrap(own_servers: Endpoints) -> str:
    return own_servers.kafka_bootstrap


@contextmanager
def frozen(bootstrap: str, module: Any, limit: str) -> Iterator[None]:
    """The broker stands still; meanwhile nobody waits for it longer than half a second."""
    port = int(bootstrap.rpartition(":")[2])
    pid = next(
        each.pid
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid
    )
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, limit, 0.5)
            yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def written(kafka_bootstrap: str) -> Callable[[int, int], str]:
    """Makes a notebook with some notes of some bytes."""

    def make(count: int, size_bytes: int) -> str:
        topic = f"n-{secrets.token_hex(4)}"
        notes = KeyValueTopic(kafka_bootstrap, topic)
        refused: list[object] = []
        for number in range(count):
            value = os.urandom(size_bytes)
            notes.write(str(number).encode(), value, [], lambda _: None, refused.append)
        notes.flush()
        notes.close()
        assert not refused
        return topic

    return make


def test_a_look_for_topics_and_for_an_offset_ends(kafka_bootstrap: str) -> None:
    topic = f"n-{secrets.token_hex(4)}"
    topics.ensure(kafka_bootstrap, [TopicSpec(topic, 1, {})])
    unanswered = partial(frozen, kafka_bootstrap, bounded_consumer, "ANSWER_S")

    def begins(client: Any) -> None:
        (place,) = partitions(client, [topic])
        client.assign([place])
        client.seek_to_beginning(place)
        with unanswered():
            client.position(place)

    def lists(client: Any) -> None:
        with unanswered():
            client.topics()

    def looks(client: Any) -> None:
        with unanswered():
            partitions(client, ["nowhere"])

    for ask in (begins, lists, looks):
        with pytest.raises(BrokerUnreachableError), consumer(kafka_bootstrap) as client:
            ask(client)
    with consumer(kafka_bootstrap) as client:
        assert topic in client.topics()


def test_a_topic_that_ends_to_come_is_not_waited_for_for_ever(
    kafka_bootstrap: str, written: Callable[[int, int], str]
) -> None:
    topic = written(24, MIB // 2)  # a fetch brings two or three
    taken: list[int] = []

    def read(client: Any) -> None:
        places = partitions(client, [topic])
        client.assign(places)
        client.seek_to_beginning(*places)
        coming = span.up_to(client, client.end_offsets(places), topic)
        taken.extend(record.offset for record in next(coming)[1])
        with frozen(kafka_bootstrap, span, "SILENT_S"):
            taken.extend(record.offset for _, records in coming for record in records)

    told = pytest.raises(BrokerUnreachableError, match="cannot be read")
    with consumer(kafka_bootstrap) as client, told:
        read(client)

    assert [0] == taken[:1]
    assert len(taken) < 24


def test_notes_are_read_as_long_as_some_come(
    kafka_bootstrap: str, written: Callable[[int, int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = written(600, 10)
    monkeypatch.setattr(span, "SILENT_S", 1.5)
    busy, count = threading.Event(), 0
    for count, _ in enumerate(read_all(kafka_bootstrap, topic), 1):
        if count % 500 == 1:
            busy.wait(1.6)  # whoever reads takes his time

    assert 600 == count
