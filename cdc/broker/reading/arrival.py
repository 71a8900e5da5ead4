"""Samples what has arrived in a source's topics: the record count and the newest heartbeat."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import consumer
from cdc.broker.reading.tail import epoch_of
from cdc.broker.topics.offsets import partitions
from cdc.change_event import ChangeEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

_READ_S: Final = 5.0
_POLL_MS: Final = 200


@dataclass(frozen=True, slots=True)
class ArrivalSample:
    """One sample of the receiving side.

    Attributes:
        records: Number of records ever written to the topics, in total.
        beat: The newest heartbeat among them; None if there is none.
    """

    records: int
    beat: ChangeEvent | None


def look(bootstrap: str, topics: Iterable[str], heartbeat_topic: str) -> ArrivalSample:
    """Takes one sample; missing topics count as empty.

    Args:
        bootstrap: Kafka's address.
        topics: Topics whose records are counted.
        heartbeat_topic: Topic of the heartbeat table, of one partition.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    with consumer(bootstrap) as client:
        there = client.topics()
        ends = client.end_offsets(partitions(client, [t for t in topics if t in there]))
        beat = _last(client, heartbeat_topic) if heartbeat_topic in there else None
    return ArrivalSample(sum(ends.values()), beat)


def _last(client: Any, topic: str) -> ChangeEvent | None:
    topic_partitions = partitions(client, [topic])
    client.assign(topic_partitions)
    ends = client.end_offsets(topic_partitions)
    (topic_partition, *_) = topic_partitions
    if ends[topic_partition] == 0:
        return None
    client.seek(topic_partition, ends[topic_partition] - 1)
    deadline = time.monotonic() + _READ_S
    while time.monotonic() < deadline:
        for record in client.poll(timeout_ms=_POLL_MS).get(topic_partition, ()):
            if record.value is not None:
                return ChangeEvent.parse(record.key, record.value, epoch_of(record))
    return None
