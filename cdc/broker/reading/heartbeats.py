"""Heartbeats as they arrived in their topic, one after another."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.broker.client.admin import consumer
from cdc.broker.reading.tail import epoch_of
from cdc.broker.topics.offsets import partitions
from cdc.change_event import ChangeEvent

if TYPE_CHECKING:
    from cdc.lsn import Lsn

_READ_S: Final = 5.0
_POLL_MS: Final = 200


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat in its topic.

    Attributes:
        number: One more than that of the heartbeat before it.
        lsn: Its position in the source's log.
        epoch: Incarnation of the source.
        offset: Its offset.
    """

    number: int
    lsn: Lsn
    epoch: int
    offset: int


def read(bootstrap: str, topic: str, offset: int | None = None) -> tuple[list[Heartbeat], bool]:
    """Reads the present heartbeats from an offset on.

    Args:
        bootstrap: Kafka's address.
        topic: The heartbeat table's topic, of one partition.
        offset: First offset; None to read only the newest.

    Returns:
        The heartbeats, and whether the first wanted one was still in the topic.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    found: list[Heartbeat] = []
    with consumer(bootstrap) as client:
        if topic not in client.topics():
            return [], True
        topic_partitions = partitions(client, [topic])
        client.assign(topic_partitions)
        (topic_partition, *_) = topic_partitions
        end = client.end_offsets(topic_partitions)[topic_partition]
        first = client.beginning_offsets(topic_partitions)[topic_partition]
        begin = max(first, end - 1 if offset is None else offset)
        whole = offset is None or first <= offset
        if begin >= end:
            return [], whole
        client.seek(topic_partition, begin)
        deadline = time.monotonic() + _READ_S
        while client.position(topic_partition) < end and time.monotonic() < deadline:
            for record in client.poll(timeout_ms=_POLL_MS).get(topic_partition, ()):
                if record.value is None:
                    continue
                event = ChangeEvent.parse(record.key, record.value, epoch_of(record))
                if (number := (event.after or {}).get("number")) is not None:
                    lsn, epoch = event.position.lsn, event.position.epoch
                    found.append(Heartbeat(int(number), lsn, epoch, record.offset))
    return found, whole
