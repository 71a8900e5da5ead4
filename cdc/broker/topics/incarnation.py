"""Topics as they are now: which incarnation of a name, and how long its log is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.broker.client.admin import admin, consumer
from cdc.broker.topics.offsets import partitions

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
    wanted = set(names)
    with admin(bootstrap) as client:
        found = client.describe_topics(sorted(wanted))
        ids = {topic["name"]: str(topic["topic_id"]) for topic in found if not topic["error_code"]}
    with consumer(bootstrap) as client:
        ends = client.end_offsets(partitions(client, ids))
    return {
        name: Incarnation(
            number_id,
            tuple(end for place, end in sorted(ends.items()) if place.topic == name),
        )
        for name, number_id in ids.items()
    }
