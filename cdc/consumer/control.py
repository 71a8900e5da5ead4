"""Inspects a group from outside, and requests retry or removal of its parked changes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.broker.group.key_value_topic import KeyValueTopic
from cdc.broker.group.lag import backlogs, set_commits
from cdc.broker.group.member import Committed, topic_ids
from cdc.broker.group.position_search import SearchedPartition, searching
from cdc.consumer.errors import GroupActiveError
from cdc.consumer.parked_topic import parked_keys
from cdc.consumer.parking import Request, request_note
from cdc.consumer.spec import parked_topic
from cdc.consumer.start import locate
from cdc.table import TableName
from cdc.topic_names import TopicNames

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc.broker.errors import RecordRefusedError
    from cdc.consumer.parked_topic import ParkedKey
    from cdc.consumer.start import GroupStart


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a group in one partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        committed: Offset of the next record to the group; None if it has committed nothing.
        end: Offset after the last record.
        consumer_lag_records: Difference of these offsets. In a compacted topic, not every offset
            still has a record.
        consumer_lag_s: Seconds since the source committed the first change that the group has not
            read; 0.0 if it has read all.
    """

    topic: str
    partition: int
    committed: int | None
    end: int
    consumer_lag_records: int
    consumer_lag_s: float


def lag(
    kafka_bootstrap: str,
    *,
    source: str,
    group: str,
    tables: Iterable[str | TableName],
    escaped_topics: Iterable[str | TableName] = (),
) -> list[PartitionLag]:
    """Returns a group's lag in each partition.

    Args:
        kafka_bootstrap: `host:port[,host:port]`.
        source: The source.
        group: The group.
        tables: The tables that it reads.
        escaped_topics: Tables that the source declares as `escaped_topics`.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: A table has no topic.
    """
    topics = _topics(source, tables, escaped_topics)
    now_us = time.time_ns() // 1_000
    found = []
    for (topic, partition), backlog in sorted(backlogs(kafka_bootstrap, group, topics).items()):
        behind = backlog.end - (backlog.begin if backlog.committed is None else backlog.committed)
        since_us = backlog.committed_at_us
        seconds = 0.0 if since_us is None else max(0.0, (now_us - since_us) / 1_000_000)
        found.append(
            PartitionLag(topic, partition, backlog.committed, backlog.end, max(0, behind), seconds)
        )
    return found


def parked(kafka_bootstrap: str, *, source: str, group: str) -> list[ParkedKey]:
    """Returns the keys that a group has parked; none if it never ran.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    return parked_keys(kafka_bootstrap, parked_topic(source, group))


def retry(kafka_bootstrap: str, parked_key: ParkedKey, *, source: str, group: str) -> None:
    """Requests redelivery of a parked key's changes, in order.

    The member that owns the partition executes the request, now or once it runs. While a change
    fails, later ones of its key wait.

    Raises:
        RecordRefusedError: Kafka does not accept the request.
    """
    _ask(kafka_bootstrap, parked_key, parked_topic(source, group), drop=False, everything=False)


def drop(
    kafka_bootstrap: str,
    parked_key: ParkedKey,
    *,
    source: str,
    group: str,
    everything: bool = False,
) -> None:
    """Requests to discard the change for which a key is parked: the group never receives it.

    Later changes of the key are delivered. If another change is the first one meanwhile, nothing is
    discarded.

    Args:
        kafka_bootstrap: Kafka's address.
        parked_key: A result of `parked`.
        source: The source.
        group: The group.
        everything: Whether to discard later changes of the key as well.

    Raises:
        RecordRefusedError: Kafka rejects the request.
    """
    _ask(kafka_bootstrap, parked_key, parked_topic(source, group), drop=True, everything=everything)


def move(  # noqa: PLR0913  # which group, of what, and where to
    kafka_bootstrap: str,
    *,
    source: str,
    group: str,
    tables: Iterable[str | TableName],
    start: GroupStart,
    escaped_topics: Iterable[str | TableName] = (),
) -> dict[tuple[str, int], int]:
    """Sets the offsets at which a group continues; returns them by partition.

    Use it to continue after a loss of records, or to go back. Parked changes stay parked.

    Raises:
        GroupActiveError: The group has members: stop them first.
        TopicMissingError: A table has no topic.
    """
    ids = topic_ids(kafka_bootstrap, _topics(source, tables, escaped_topics))
    began_ms = int(time.time() * 1000)
    wanted = {}
    with searching(kafka_bootstrap) as client:
        for topic, topic_id in ids.items():
            for number in sorted(client.partitions_for_topic(topic)):
                partition = SearchedPartition(client, (topic, number))
                offset = locate(start, partition)
                wanted[topic, number] = Committed(offset, topic_id, began_ms)
    if not set_commits(kafka_bootstrap, group, wanted):
        raise GroupActiveError(
            f"group {group} has members", hint="stop the members, then move the group"
        )
    return {topic_partition: commit.offset for topic_partition, commit in wanted.items()}


def _topics(
    source: str, tables: Iterable[str | TableName], escaped: Iterable[str | TableName]
) -> list[str]:
    names = TopicNames(source, frozenset(map(table_name, escaped)))
    return [names.of(table_name(table)) for table in tables]


def table_name(table: str | TableName) -> TableName:
    """Returns a table's name, given as text or as a `TableName`."""
    return TableName.parse(table) if isinstance(table, str) else table


def _ask(
    kafka_bootstrap: str, parked_key: ParkedKey, topic: str, *, drop: bool, everything: bool
) -> None:
    refused: list[RecordRefusedError] = []
    partition = (parked_key.topic, parked_key.partition)
    request = Request(parked_key.raw_key, drop, everything, parked_key.offset)
    notebook = KeyValueTopic(kafka_bootstrap, topic)
    try:
        notebook.write(*request_note(partition, request), lambda _: None, refused.append)
        notebook.flush()
    finally:
        notebook.close()
    if refused:
        raise refused[0]
