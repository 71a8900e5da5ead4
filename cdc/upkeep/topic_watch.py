"""Measures how much log a source's topics have left, and which readers are near its end."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.broker.topics import extent, topics
from cdc.upkeep import retention
from cdc.upkeep.retention import PartitionReader, PartitionRetention, ReaderState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.broker.topics.extent import PartitionExtent, PartitionId
    from cdc.capture import CaptureSpec

WINDOW_S: Final = 5.0
"""How long to observe the growth of the topics."""


@dataclass(frozen=True, slots=True)
class TopicWatch:
    """The topics of a source: what they keep, and who reads them.

    Attributes:
        bytes_per_second: Total write rate.
        kept: Every partition.
        readers: Every reader of every partition.
    """

    bytes_per_second: float
    kept: tuple[PartitionRetention, ...]
    readers: tuple[PartitionReader, ...]

    @property
    def healthy(self) -> bool:
        """Returns whether no reader is near the end."""
        return all(reader.state is ReaderState.OK for reader in self.readers)


def look(
    spec: CaptureSpec,
    queries: Mapping[str, Mapping[PartitionId, int]],
    window_s: float = WINDOW_S,
) -> TopicWatch:
    """Samples every topic of a source twice, to measure its growth; changes nothing.

    Args:
        spec: The source.
        queries: Next offsets of readers without a consumer group, by name.
        window_s: Time between the two samples, seconds.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    bootstrap = spec.kafka_bootstrap
    names = [*spec.table_topics.values(), spec.transaction_topic]
    if spec.outbox is not None:
        names += sorted(n for n in topics.names(bootstrap) if n.startswith(spec.outbox_prefix))
    before, began = extent.sizes_bytes(bootstrap, names), time.monotonic()
    wanted = {**queries, **extent.groups(bootstrap, names)}
    sent_at = {name: extent.times(bootstrap, partitions) for name, partitions in wanted.items()}
    time.sleep(max(0.0, window_s - (time.monotonic() - began)))
    found = extent.extents(bootstrap, names)
    seconds, now_s = time.monotonic() - began, time.time()
    there = topics.find(bootstrap, {topic for topic, _ in found})
    kept = {
        partition: _kept(
            partition, at, there[partition[0]].configs, before.get(partition, 0), seconds, now_s
        )
        for partition, at in found.items()
    }
    readers = [
        retention.reader(
            name, kept[partition], found[partition], offset, sent_at[name].get(partition), now_s
        )
        for name, partitions in sorted(wanted.items())
        for partition, offset in sorted(partitions.items())
        if partition in kept
    ]
    total = sum(at.bytes_per_second for at in kept.values())
    return TopicWatch(total, tuple(kept.values()), tuple(readers))


def _kept(  # noqa: PLR0913, PLR0917  # the parts of one line
    partition: PartitionId,
    found: PartitionExtent,
    configs: Mapping[str, str],
    before_bytes: int,
    seconds: float,
    now_s: float,
) -> PartitionRetention:
    rate = retention.rate(found, found.size_bytes - before_bytes, seconds)
    return retention.kept(partition, found, configs, rate, now_s)
