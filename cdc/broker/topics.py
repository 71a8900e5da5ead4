"""Topics, made before anybody writes to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc.broker.admin import admin
from cdc.broker.errors import TopicRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it shall be made.

    Attributes:
        name: Its name.
        partitions: How many.
        configs: Kafka's topic properties.
        replication_factor: Copies; -1 is the broker's default.
    """

    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


def ensure(bootstrap: str, topics: Iterable[TopicSpec]) -> list[str]:
    """Makes the topics that are missing; those that exist stay as they are.

    Returns:
        What was changed, and partition counts that differ from those asked for.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicRefusedError: A topic cannot be made.
    """
    wanted = {topic.name: topic for topic in topics}
    with admin(bootstrap) as client:
        there = _partition_counts(client, wanted)
        missing = [topic for name, topic in wanted.items() if name not in there]
        if missing:
            _create(client, missing)
    changes = [f"created topic {topic.name}" for topic in missing]
    for name, count in there.items():
        if count != wanted[name].partitions:
            changes.append(
                f"topic {name} has {count} partitions, not {wanted[name].partitions}; left alone"
            )
    return changes


def names(bootstrap: str) -> frozenset[str]:
    """Returns the names of all topics of the broker."""
    with admin(bootstrap) as client:
        return frozenset(client.list_topics())


def delete(bootstrap: str, names: Iterable[str]) -> list[str]:
    """Deletes those of the topics that exist; returns their names."""
    with admin(bootstrap) as client:
        there = sorted(_partition_counts(client, list(names)))
        if there:
            client.delete_topics(there)
    return there


def bytes_on_disk(bootstrap: str, names: Iterable[str]) -> dict[str, int]:
    """Returns the bytes that the topics take on the brokers, all copies together."""
    sizes = dict.fromkeys(names, 0)
    with admin(bootstrap) as client:
        there = list(_partition_counts(client, list(sizes)))
        for broker in client.describe_log_dirs(there) if there else ():
            for folder in broker["log_dirs"]:
                for topic in folder["topics"]:
                    name = topic.get("name") or topic.get("topic")
                    sizes[name] += sum(p["partition_size"] for p in topic["partitions"])
    return sizes


def _partition_counts(client: Any, names: Iterable[str]) -> dict[str, int]:
    found = client.describe_topics(list(names))
    return {topic["name"]: len(topic["partitions"]) for topic in found if not topic["error_code"]}


def _create(client: Any, topics: list[TopicSpec]) -> None:
    wanted = {
        topic.name: {
            "num_partitions": topic.partitions,
            "replication_factor": topic.replication_factor,
            "configs": dict(topic.configs),
        }
        for topic in topics
    }
    from kafka.errors import for_code  # noqa: PLC0415  # see admin

    answer = client.create_topics(wanted, raise_errors=False)
    for topic in answer["topics"]:
        error = for_code(topic["error_code"])
        if topic["error_code"] and error.__name__ != "TopicAlreadyExistsError":
            raise TopicRefusedError(
                f"topic {topic['name']} cannot be made",
                detail=topic.get("error_message") or error.__name__,
                hint="names that differ only by . and _ collide in kafka",
            )
    client.wait_for_topics(list(wanted))
