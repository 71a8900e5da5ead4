"""Topics, created before they are written, and their properties."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc.broker.client.admin import admin
from cdc.broker.errors import TopicRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to create.

    Attributes:
        name: Its name.
        partitions: Number of partitions.
        configs: Kafka's topic properties.
        replication_factor: Number of copies; -1 for the broker's default.
    """

    name: str
    partitions: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


def ensure(bootstrap: str, topics: Iterable[TopicSpec]) -> list[str]:
    """Creates the missing topics; existing ones stay unchanged.

    Returns:
        What was changed, one line each.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicRefusedError: A topic cannot be created.
    """
    wanted = {topic.name: topic for topic in topics}
    with admin(bootstrap) as client:
        there = _partition_counts(client, wanted)
        missing = [topic for name, topic in wanted.items() if name not in there]
        if missing:
            _create(client, missing)
    return [f"created topic {topic.name}" for topic in missing]


def find(bootstrap: str, names: Iterable[str]) -> dict[str, TopicSpec]:
    """Describes the topics that exist: partitions, and properties with other than default values.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    from kafka.admin import ConfigResource, ConfigResourceType  # noqa: PLC0415  # see admin

    with admin(bootstrap) as client:
        counts = _partition_counts(client, names)
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in counts]
        described = client.describe_configs(asked).get("topic", {}) if asked else {}
    return {
        name: TopicSpec(name, count, {key: at["value"] for key, at in described[name].items()})
        for name, count in counts.items()
    }


def alter(bootstrap: str, name: str, configs: Mapping[str, str | None]) -> None:
    """Sets properties of a topic; None resets one to the broker's default. Others stay unchanged.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicRefusedError: The broker refuses a value.
    """
    from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType  # noqa: PLC0415
    from kafka.errors import BrokerResponseError  # noqa: PLC0415

    wanted = {
        key: (AlterConfigOp.DELETE, None) if value is None else (AlterConfigOp.SET, value)
        for key, value in configs.items()
    }
    with admin(bootstrap) as client:
        try:
            answer = client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, wanted)])
        except (BrokerResponseError, ValueError) as error:
            refused = type(error).__name__
        else:
            refused = str(answer.get("topic", {}).get(name, ""))
    if refused != "OK":
        raise TopicRefusedError(
            f"topic {name} cannot be changed", detail=f"{', '.join(configs)}: {refused}"
        )


def names(bootstrap: str) -> frozenset[str]:
    """Returns the names of all topics of the broker."""
    with admin(bootstrap) as client:
        return frozenset(client.list_topics())


def identities(bootstrap: str, names: Iterable[str]) -> dict[str, str]:
    """Returns the id of each topic; a recreated topic has another. Missing topics are omitted.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    with admin(bootstrap) as client:
        found = client.describe_topics(list(names))
    return {topic["name"]: str(topic["topic_id"]) for topic in found if not topic["error_code"]}


def delete(bootstrap: str, names: Iterable[str]) -> list[str]:
    """Deletes the topics that exist; returns their names."""
    with admin(bootstrap) as client:
        there = sorted(_partition_counts(client, list(names)))
        if there:
            client.delete_topics(there)
    return there


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
                f"topic {topic['name']} cannot be created",
                detail=topic.get("error_message") or error.__name__,
                hint="names that differ only by . and _ collide in kafka",
            )
    client.wait_for_topics(list(wanted))
