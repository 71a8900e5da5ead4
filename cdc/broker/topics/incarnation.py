"""The present incarnation of topics: ids and end offsets."""

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
        id: Kafka's id; a topic recreated under the same name has another one.
        ends: End offset of each partition, by its number.
    """

    id: str
    ends: tuple[int, ...]


def look(bootstrap: str, names: Iterable[str]) -> dict[str, Incarnation]:
    """Describes the topics; missing ones are omitted.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    ids = identities(bootstrap, sorted(set(names)))
    of_topic: dict[str, list[int]] = {name: [] for name in ids}
    for (topic, _), end in sorted(end_offsets(bootstrap, ids).items()):
        of_topic[topic].append(end)
    return {name: Incarnation(topic_id, tuple(of_topic[name])) for name, topic_id in ids.items()}
