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

Place = tuple[str, int]
"""Topic and partition."""

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


def extents(bootstrap: str, topics: Iterable[str]) -> dict[Place, PartitionExtent]:
    """Describes every partition of the topics; missing topics are omitted.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    found = bounds(bootstrap, topics)
    full = {place: (first, end) for place, (first, end) in found.items() if first < end}
    oldest = _times(bootstrap, {place: first for place, (first, _) in full.items()})
    newest = _times(bootstrap, {place: end - 1 for place, (_, end) in full.items()})
    sizes = sizes_bytes(bootstrap, {topic for topic, _ in found})
    return {
        place: PartitionExtent(
            first, end, sizes.get(place, 0), oldest.get(place), newest.get(place)
        )
        for place, (first, end) in found.items()
    }


def bounds(bootstrap: str, topics: Iterable[str]) -> dict[Place, tuple[int, int]]:
    """Returns first offset and end offset of every partition; missing topics are omitted.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    with consumer(bootstrap) as client:
        there = client.topics()
        places = partitions(client, [topic for topic in topics if topic in there])
        first, ends = client.beginning_offsets(places), client.end_offsets(places)
    return {(place.topic, place.partition): (first[place], ends[place]) for place in places}


def sizes_bytes(bootstrap: str, topics: Iterable[str]) -> dict[Place, int]:
    """Returns the size of one copy of every partition, bytes."""
    wanted = sorted(topics)
    found: dict[Place, int] = {}
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


def times(bootstrap: str, offsets: Mapping[Place, int]) -> dict[Place, float]:
    """Returns when the record at or after each offset was sent, seconds since 1970.

    Partitions without such a record are omitted.
    """
    from kafka import TopicPartition  # noqa: PLC0415  # see admin

    if not offsets:
        return {}
    with consumer(bootstrap) as client:
        ends = client.end_offsets([TopicPartition(*place) for place in offsets])
    there = {(place.topic, place.partition): end for place, end in ends.items()}
    return _times(bootstrap, {place: at for place, at in offsets.items() if at < there[place]})


def groups(bootstrap: str, topics: Iterable[str]) -> dict[str, dict[Place, int]]:
    """Returns the committed offsets of every consumer group that reads one of the topics."""
    wanted = frozenset(topics)
    found: dict[str, dict[Place, int]] = {}
    with admin(bootstrap) as client:
        names = [str(group.get("group_id") or group.get("group")) for group in client.list_groups()]
        for name in names:
            committed = client.list_group_offsets(name).get(name, {})
            places = {
                (place.topic, place.partition): at.offset
                for place, at in committed.items()
                if place.topic in wanted and at.offset != _NO_OFFSET
            }
            if places:
                found[name] = places
    return found


def _times(bootstrap: str, offsets: Mapping[Place, int]) -> dict[Place, float]:
    """Reads one record of each partition, with a new consumer that has fetched no other records."""
    from kafka import TopicPartition  # noqa: PLC0415  # see admin

    if not offsets:
        return {}
    missing = {TopicPartition(*place): offset for place, offset in offsets.items()}
    found: dict[Place, float] = {}
    deadline = time.monotonic() + _TIMES_S
    with consumer(bootstrap) as client:
        client.assign(list(missing))
        for place, offset in missing.items():
            client.seek(place, offset)
        while missing and time.monotonic() < deadline:
            for place, records in client.poll(timeout_ms=_POLL_MS).items():
                if missing.pop(place, None) is not None:
                    found[place.topic, place.partition] = records[0].timestamp / 1000
                    client.pause(place)
    return found
