"""Topics as they are now: which incarnation of a name, and how long its log is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.broker.topics.offsets import end_offsets
from cdc.broker.topics.topics import identities

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Incarnation:
    """A topic.

    Attributes:
        id: Kafka's own, which a topic recreated under the same name does not share.
        ends: Next offset of each partition, by its number.
    """

    id: str
    ends: tuple[int, ...]


def look(bootstrap: str, names: Iterable[str]) -> dict[str, Incarnation]:
    """Returns those of the topics that exist.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    ids = identities(bootstrap, sorted(set(names)))
    of_topic: dict[str, list[int]] = {name: [] for name in ids}
    for (topic, _), end in sorted(end_offsets(bootstrap, ids).items()):
        of_topic[topic].append(end)
    return {name: Incarnation(topic_id, tuple(of_topic[name])) for name, topic_id in ids.items()}
