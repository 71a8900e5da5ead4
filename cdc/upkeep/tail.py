"""Looking at how much of its log a source has left, and who is near the end of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc.broker.topics import extent, topics
from cdc.upkeep import retention
from cdc.upkeep.retention import PartitionReader, PartitionRetention, ReaderState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.broker.topics.extent import PartitionExtent, Place
    from cdc.capture import CaptureSpec

WINDOW_S: Final = 5.0
"""How long one waits to see the log grow."""


@dataclass(frozen=True, slots=True)
class Tail:
    """The log of a source: what it keeps, and who reads it.

    Attributes:
        bytes_per_second: What is appended to all of it.
        kept: Every partition.
        readers: Every reader in every partition that it reads.
    """

    bytes_per_second: float
    kept: tuple[PartitionRetention, ...]
    readers: tuple[PartitionReader, ...]

    @property
    def healthy(self) -> bool:
        """Whether no reader is near the end."""
        return all(reader.state is ReaderState.OK for reader in self.readers)


def look(
    spec: CaptureSpec,
    queries: Mapping[str, Mapping[Place, int]],
    window_s: float = WINDOW_S,
) -> Tail:
    """Looks at every topic of a source twice, so that its growth is seen; changes nothing.

    Args:
        spec: The source.
        queries: Offsets that readers which are no consumer groups want next, by their names.
        window_s: Time between the two looks, seconds.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    bootstrap = spec.kafka_bootstrap
    names = [*spec.table_topics.values(), spec.transaction_topic]
    if spec.outbox is not None:
        names += sorted(n for n in topics.names(bootstrap) if n.startswith(spec.outbox_prefix))
    before, began = extent.sizes_bytes(bootstrap, names), time.monotonic()
    wanted = {**queries, **extent.groups(bootstrap, names)}
    sent_at = {name: extent.times(bootstrap, places) for name, places in wanted.items()}
    time.sleep(max(0.0, window_s - (time.monotonic() - began)))
    found = extent.extents(bootstrap, names)
    seconds, now_s = time.monotonic() - began, time.time()
    there = topics.find(bootstrap, {topic for topic, _ in found})
    kept = {
        place: _kept(place, at, there[place[0]].configs, before.get(place, 0), seconds, now_s)
        for place, at in found.items()
    }
    readers = [
        retention.reader(name, kept[place], found[place], offset, sent_at[name].get(place), now_s)
        for name, places in sorted(wanted.items())
        for place, offset in sorted(places.items())
        if place in kept
    ]
    total = sum(at.bytes_per_second for at in kept.values())
    return Tail(total, tuple(kept.values()), tuple(readers))


def _kept(  # noqa: PLR0913, PLR0917  # the parts of one line
    place: Place,
    found: PartitionExtent,
    configs: Mapping[str, str],
    before_bytes: int,
    seconds: float,
    now_s: float,
) -> PartitionRetention:
    rate = retention.rate(found, found.size_bytes - before_bytes, seconds)
    return retention.kept(place, found, configs, rate, now_s)
