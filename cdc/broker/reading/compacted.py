"""Compacted topics: what they promise to keep, and their records.

Who reads one while its brokers compact it may be given an older record of a key and not the ones
between that and the newest: the older one was read before it went, the others went before they
came. Brokers compact a partition from its beginning on. So if a record is still there at a second
look, none that came after it had gone at the first; where one is not, no one can tell.
"""

from __future__ import annotations

import time
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import consumer
from cdc.broker.reading.span import up_to
from cdc.broker.topics import extent, topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

POLICY: Final = frozenset({"compact"})
"""Whatever is removed by time or size, or by hand, is removed under another one."""

CLOCKS_APART_S: Final = 60.0
"""How far the clocks of brokers, of whoever writes to them, and of this machine may be apart."""


@dataclass(frozen=True, slots=True)
class CompactedTopic:
    """A topic as its brokers have it.

    Attributes:
        name: Its name.
        identity: What tells it from others that had its name.
        policy: What makes room in it.
        keeps_s: How long it keeps every record, seconds; of those that are older, perhaps only the
            newest of each key.
        bounds: First offset of each partition, and the one after its last record.
        size_bytes: Bytes of one copy.
    """

    name: str
    identity: str
    policy: frozenset[str]
    keeps_s: float
    bounds: Mapping[int, tuple[int, int]]
    size_bytes: int = 0

    @property
    def span(self) -> int:
        """As many records as it has at most."""
        return sum(end - first for first, end in self.bounds.values())


@dataclass(frozen=True, slots=True)
class SecondLook:
    """What of a partition is still there.

    Attributes:
        intact_from: No record from there on was taken away.
        offsets: Offsets of the records before that which are there, rising.
    """

    intact_from: int
    offsets: array[int] = field(default_factory=lambda: array("q"))


def look(bootstrap: str, topic: str) -> CompactedTopic | None:
    """Describes a topic, whatever makes room in it; None if there is none of that name.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    found = topics.find(bootstrap, [topic]).get(topic)
    identity = topics.identities(bootstrap, [topic]).get(topic)
    if found is None or identity is None:
        return None
    policy = found.configs.get("cleanup.policy", "delete")
    keeps_ms = int(found.configs.get("min.compaction.lag.ms", "0"))
    sizes = extent.sizes_bytes(bootstrap, [topic])
    return CompactedTopic(
        topic,
        identity,
        frozenset(each.strip() for each in policy.split(",")),
        keeps_ms / 1000,
        {number: bounds for (_, number), bounds in extent.bounds(bootstrap, [topic]).items()},
        sum(sizes.values()),
    )


def first_times(bootstrap: str, topic: CompactedTopic) -> dict[int, float]:
    """Returns when the first record of each partition that has any was sent, since 1970."""
    firsts = {(topic.name, number): first for number, (first, _) in topic.bounds.items()}
    return {number: at_s for (_, number), at_s in extent.times(bootstrap, firsts).items()}


def read(bootstrap: str, topic: CompactedTopic) -> Iterator[Sequence[Any]]:
    """Yields the records of a topic before the ends that it was described with, a few at a time.

    Those of one partition come in its order, and the last of them may lie beyond its end.

    Raises:
        BrokerUnreachableError: No broker answers, or nothing came for a minute.
    """
    with consumer(bootstrap) as client:
        ends = _assigned(client, topic, sorted(topic.bounds))
        for place, records in up_to(client, ends, topic.name):
            yield records
            if client.position(place) >= ends[place]:
                client.pause(place)


def look_again(
    bootstrap: str, topic: CompactedTopic, rest: Callable[[], None] = lambda: None
) -> dict[int, SecondLook]:
    """Looks which records of each partition are still there, before the ends that it was read to.

    It ends where the topic promises that nothing was taken away from there on.

    Args:
        bootstrap: Kafka's address.
        topic: The topic, read before.
        rest: Called now and then.

    Raises:
        BrokerUnreachableError: No broker answers, or nothing came for a minute.
    """
    with consumer(bootstrap) as client:
        return {
            number: _still_there(client, topic, number, rest) for number in sorted(topic.bounds)
        }


def _still_there(
    client: Any, topic: CompactedTopic, number: int, rest: Callable[[], None]
) -> SecondLook:
    ends = _assigned(client, topic, [number])
    (end,) = ends.values()
    found = SecondLook(end)
    for _, records in up_to(client, ends, topic.name):
        # a piece is compacted once all of its records are old enough, and those before it are
        young_ms = (time.time() - topic.keeps_s + CLOCKS_APART_S) * 1000
        for record in records:
            if record.offset >= end:
                return found
            if record.timestamp > young_ms:
                return SecondLook(record.offset, found.offsets)
            found.offsets.append(record.offset)
        rest()
    return found


def _assigned(client: Any, topic: CompactedTopic, numbers: Sequence[int]) -> dict[Any, int]:
    """Has a consumer begin with some partitions; returns where each of them ends."""
    from kafka import TopicPartition  # noqa: PLC0415  # see admin

    places = {TopicPartition(topic.name, number): topic.bounds[number] for number in numbers}
    client.assign(list(places))
    for place, (first, _) in places.items():
        client.seek(place, first)
    return {place: end for place, (_, end) in places.items()}
