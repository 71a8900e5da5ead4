"""The extent of topics, in offsets, bytes and time, and the positions of consumer groups."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import admin, consumer
from cdc.broker.topics.offsets import partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_TIMES_S: Final = 10.0
_POLL_MS: Final = 200
_NO_OFFSET: Final = -1

PartitionId = tuple[str, int]
"""A topic and the number of one of its partitions."""

Copy = tuple[int, str, int]
"""Broker, topic and partition."""


@dataclass(frozen=True, slots=True)
class PartitionExtent:
    """The extent of one partition.

    Attributes:
        earliest: First offset.
        end: Offset after the last record.
        size_bytes: Size of one copy.
        oldest_at_s: Time of its first record, seconds since 1970; None if it is empty.
        newest_at_s: Time of its newest record.
    """

    earliest: int
    end: int
    size_bytes: int
    oldest_at_s: float | None
    newest_at_s: float | None


def extents(bootstrap: str, topics: Iterable[str]) -> dict[PartitionId, PartitionExtent]:
    """Describes every partition of the topics; missing topics are omitted.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    found = bounds(bootstrap, topics)
    full = {partition: (first, end) for partition, (first, end) in found.items() if first < end}
    oldest = _times(bootstrap, {partition: first for partition, (first, _) in full.items()})
    newest = _times(bootstrap, {partition: end - 1 for partition, (_, end) in full.items()})
    sizes = sizes_bytes(bootstrap, {topic for topic, _ in found})
    return {
        partition: PartitionExtent(
            first, end, sizes.get(partition, 0), oldest.get(partition), newest.get(partition)
        )
        for partition, (first, end) in found.items()
    }


def bounds(bootstrap: str, topics: Iterable[str]) -> dict[PartitionId, tuple[int, int]]:
    """Returns first offset and end offset of every partition; missing topics are omitted.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    with consumer(bootstrap) as client:
        there = client.topics()
        topic_partitions = partitions(client, [topic for topic in topics if topic in there])
        first, ends = (
            client.beginning_offsets(topic_partitions),
            client.end_offsets(topic_partitions),
        )
    return {
        (topic_partition.topic, topic_partition.partition): (
            first[topic_partition],
            ends[topic_partition],
        )
        for topic_partition in topic_partitions
    }


def sizes_bytes(bootstrap: str, topics: Iterable[str]) -> dict[PartitionId, int]:
    """Returns the size of one copy of every partition, bytes."""
    wanted = sorted(topics)
    found: dict[PartitionId, int] = {}
    with admin(bootstrap) as client:
        for (_, topic, partition), size in copies_bytes(client, wanted).items():
            # sizes differ only while a replica catches up
            found[topic, partition] = max(found.get((topic, partition), 0), size)
    return found


def copies_bytes(client: Any, topics: Sequence[str]) -> dict[Copy, int]:
    """Returns the size of every copy of every partition, bytes.

    Args:
        client: An admin client.
        topics: The topics.
    """
    return {
        (
            int(broker["broker"]),
            topic.get("name") or topic["topic"],
            int(part["partition_index"]),
        ): int(part["partition_size"])
        for broker in (client.describe_log_dirs(list(topics)) if topics else ())
        for folder in broker["log_dirs"]
        for topic in folder["topics"]
        for part in topic["partitions"]
    }


def times(bootstrap: str, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, float]:
    """Returns when the record at or after each offset was sent, seconds since 1970.

    Partitions without such a record are omitted.
    """
    from kafka import TopicPartition  # noqa: PLC0415  # see admin

    if not offsets:
        return {}
    with consumer(bootstrap) as client:
        ends = client.end_offsets([TopicPartition(*partition) for partition in offsets])
    there = {(partition.topic, partition.partition): end for partition, end in ends.items()}
    return _times(
        bootstrap, {partition: at for partition, at in offsets.items() if at < there[partition]}
    )


def groups(bootstrap: str, topics: Iterable[str]) -> dict[str, dict[PartitionId, int]]:
    """Returns the committed offsets of every consumer group that reads one of the topics."""
    wanted = frozenset(topics)
    found: dict[str, dict[PartitionId, int]] = {}
    with admin(bootstrap) as client:
        names = [str(group.get("group_id") or group.get("group")) for group in client.list_groups()]
        for name in names:
            committed = client.list_group_offsets(name).get(name, {})
            partitions = {
                (partition.topic, partition.partition): at.offset
                for partition, at in committed.items()
                if partition.topic in wanted and at.offset != _NO_OFFSET
            }
            if partitions:
                found[name] = partitions
    return found


def _times(bootstrap: str, offsets: Mapping[PartitionId, int]) -> dict[PartitionId, float]:
    """Reads one record of each partition, with a new consumer that has fetched no other records."""
    from kafka import TopicPartition  # noqa: PLC0415  # see admin

    if not offsets:
        return {}
    missing = {TopicPartition(*partition): offset for partition, offset in offsets.items()}
    found: dict[PartitionId, float] = {}
    deadline = time.monotonic() + _TIMES_S
    with consumer(bootstrap) as client:
        client.assign(list(missing))
        for partition, offset in missing.items():
            client.seek(partition, offset)
        while missing and time.monotonic() < deadline:
            for partition, records in client.poll(timeout_ms=_POLL_MS).items():
                if missing.pop(partition, None) is not None:
                    found[partition.topic, partition.partition] = records[0].timestamp / 1000
                    client.pause(partition)
    return found
