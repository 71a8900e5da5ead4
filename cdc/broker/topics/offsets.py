"""End offsets of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.broker.client.admin import consumer
from cdc.broker.errors import TopicMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable


def end_offsets(bootstrap: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Returns the offset after the last record, by topic and partition.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: One of the topics does not exist.
    """
    with consumer(bootstrap) as client:
        ends = client.end_offsets(partitions(client, topics))
    return {(partition.topic, partition.partition): end for partition, end in ends.items()}


def partitions(client: Any, topics: Iterable[str]) -> list[Any]:
    """Returns the partitions of topics as `TopicPartition`s of kafka's consumer."""
    from kafka import TopicPartition  # noqa: PLC0415  # see admin

    partitions = []
    for topic in topics:
        numbers = client.partitions_for_topic(topic)
        if not numbers:
            raise TopicMissingError(f"topic {topic} does not exist", hint="headwater up creates it")
        partitions += [TopicPartition(topic, number) for number in sorted(numbers)]
    return partitions
