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

    from cdc.broker.group.member import Place


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a group has not had of one partition.

    Attributes:
        committed: Offset of the next record to it; None if it has committed nothing.
        begin: Offset of the first record that the topic still has.
        end: Offset after the last record.
        committed_at_us: When the first change that it has not had was committed at the source,
            microseconds since 1970; None if there is none.
    """

    committed: int | None
    begin: int
    end: int
    committed_at_us: int | None


def backlogs(bootstrap: str, group: str, topics: Iterable[str]) -> dict[Place, Backlog]:
    """Returns what a group has not had of each partition of topics.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: One of the topics does not exist.
    """
    offsets = {place: kept.offset for place, kept in commits(bootstrap, group).items()}
    found = {}
    with consumer(bootstrap) as client:
        for place in partitions(client, topics):
            partition = SearchedPartition(client, place)
            committed = offsets.get(place)
            start = partition.begin if committed is None else max(committed, partition.begin)
            waiting = next(partition.changes(start, partition.end), None)
            found[tuple(place)] = Backlog(
                committed,
                partition.begin,
                partition.end,
                waiting[1].committed_at_us if waiting else None,
            )
    return found


def commits(bootstrap: str, group: str) -> dict[Place, Committed]:
    """Returns everything that a group has committed."""
    with admin(bootstrap) as client:
        kept = client.list_group_offsets(group)
    return {
        tuple(place): Committed.parse(commit.offset, commit.metadata)
        for place, commit in kept[group].items()
        if commit.offset >= 0
    }


def set_commits(bootstrap: str, group: str, offsets: Mapping[Place, Committed]) -> bool:
    """Sets what a group has committed; returns False if it has members, who would do so over it."""
    from kafka import OffsetAndMetadata, TopicPartition  # noqa: PLC0415  # see admin
    from kafka.errors import NoError  # noqa: PLC0415

    wanted = {
        TopicPartition(*place): OffsetAndMetadata(kept.offset, kept.note)
        for place, kept in offsets.items()
    }
    with admin(bootstrap) as client:
        answer = client.alter_group_offsets(group, wanted)
    return all(error is NoError for error in answer.values())
