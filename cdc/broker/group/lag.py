"""The lag of a consumer group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.broker.client.admin import admin, consumer
from cdc.broker.group.member import Committed
from cdc.broker.group.position_search import SearchedPartition
from cdc.broker.topics.offsets import partitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.broker.topics.extent import PartitionId


@dataclass(frozen=True, slots=True)
class Backlog:
    """The records of one partition that a group has not read yet.

    Attributes:
        committed: Offset of its next record; None if it has committed nothing.
        begin: First offset of the topic.
        end: Offset after the last record.
        committed_at_us: Commit time at the source of the first change that the group has not read,
            microseconds since 1970; None if it has read all.
    """

    committed: int | None
    begin: int
    end: int
    committed_at_us: int | None


def backlogs(bootstrap: str, group: str, topics: Iterable[str]) -> dict[PartitionId, Backlog]:
    """Returns what a group has not read yet of each partition of topics.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: One of the topics does not exist.
    """
    offsets = {
        topic_partition: kept.offset for topic_partition, kept in commits(bootstrap, group).items()
    }
    found = {}
    with consumer(bootstrap) as client:
        for topic_partition in partitions(client, topics):
            partition = SearchedPartition(client, topic_partition)
            committed = offsets.get(topic_partition)
            start = partition.begin if committed is None else max(committed, partition.begin)
            waiting = next(partition.changes(start, partition.end), None)
            found[tuple(topic_partition)] = Backlog(
                committed,
                partition.begin,
                partition.end,
                waiting[1].committed_at_us if waiting else None,
            )
    return found


def commits(bootstrap: str, group: str) -> dict[PartitionId, Committed]:
    """Returns everything that a group has committed."""
    with admin(bootstrap) as client:
        kept = client.list_group_offsets(group)
    return {
        tuple(partition): Committed.parse(commit.offset, commit.metadata)
        for partition, commit in kept[group].items()
        if commit.offset >= 0
    }


def set_commits(bootstrap: str, group: str, offsets: Mapping[PartitionId, Committed]) -> bool:
    """Sets the committed offsets of a group; returns False if it has active members."""
    from kafka import OffsetAndMetadata, TopicPartition  # noqa: PLC0415  # see admin
    from kafka.errors import NoError  # noqa: PLC0415

    wanted = {
        TopicPartition(*partition): OffsetAndMetadata(kept.offset, kept.note)
        for partition, kept in offsets.items()
    }
    with admin(bootstrap) as client:
        answer = client.alter_group_offsets(group, wanted)
    return all(error is NoError for error in answer.values())
