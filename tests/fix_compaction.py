"""Compaction of a topic by its broker, now and not when it is due."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc.broker.reading import compacted
from cdc.broker.topics import topics
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdc.broker.reading.compacted import CompactedTopic

AT_ONCE = {
    "segment.ms": "100",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1000",
    "min.cleanable.dirty.ratio": "0.001",
}


@contextmanager
def compacting(bootstrap: str, topic: str) -> Iterator[None]:
    """Has the broker compact a topic as soon as it can, as long as the block runs."""
    before = topics.find(bootstrap, [topic])[topic].configs
    topics.alter(bootstrap, topic, AT_ONCE)
    try:
        yield
    finally:
        topics.alter(bootstrap, topic, {name: before.get(name) for name in AT_ONCE})


def await_compacted(
    bootstrap: str, topic: str, write: Callable[[], object], deadline_s: float = 120
) -> list[int]:
    """Writes until nothing is left of a topic, as it was before, but what compaction leaves.

    Returns:
        The offsets that are left of it.
    """
    found = compacted.look(bootstrap, topic)
    assert found is not None

    def look() -> list[tuple[bytes, int]]:
        write()
        return records(bootstrap, found)

    left = wait_until(
        look,
        f"fewer records than {found.span}, one of each key",
        accept=lambda kept: len(kept) < found.span and len(kept) == len({key for key, _ in kept}),
        timeout_s=deadline_s,
        pause_s=0.15,  # a piece ends by its age, with the record that comes then
    )
    return sorted(offset for _, offset in left)


def records(bootstrap: str, topic: CompactedTopic) -> list[tuple[bytes, int]]:
    """Key and offset of each record before the ends of a topic."""
    found = compacted.read(bootstrap, topic)
    return [
        (each.key, each.offset)
        for some in found
        for each in some
        if each.offset < topic.bounds[each.partition][1]
    ]
