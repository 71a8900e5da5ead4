"""Truncation: deletes the records before an offset, also from the brokers' disks.

A broker deletes whole segments of a partition, and never the active one. So the partition must
first begin a new segment, which it does at the next record; the earlier ones can then be deleted.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cdc.broker.client.admin import admin
from cdc.broker.errors import TopicRefusedError
from cdc.broker.topics import topics
from cdc.broker.topics.extent import copies_bytes
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from contextlib import AbstractContextManager

    from cdc.broker.topics.extent import PartitionId

_SHORT: Final = {"segment.ms": "1000"}
_AT_ONCE: Final = {"file.delete.delay.ms": "0"}
_POLL_S: Final = 0.1


def short_pieces(bootstrap: str, topic: str) -> AbstractContextManager[None]:
    """Lets the partitions of a topic begin a new segment at the next record, within the block.

    A process that is killed meanwhile leaves short segments; the next `headwater up` restores them.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicRefusedError: The topic cannot be changed.
    """
    return _altered(bootstrap, topic, _SHORT)


def files_go_at_once(bootstrap: str, topic: str) -> AbstractContextManager[None]:
    """Lets brokers delete files of a topic without the usual delay, within the block.

    A process that is killed meanwhile leaves that setting; the next `headwater up` restores it.
    """
    return _altered(bootstrap, topic, _AT_ONCE)


@contextmanager
def _altered(bootstrap: str, topic: str, configs: Mapping[str, str]) -> Iterator[None]:
    found = topics.find(bootstrap, [topic])
    before = found[topic].configs if topic in found else {}
    topics.alter(bootstrap, topic, configs)
    try:
        yield
    finally:
        topics.alter(bootstrap, topic, {name: before.get(name) for name in configs})


def cut_off(bootstrap: str, before: Mapping[PartitionId, int]) -> None:
    """Deletes the records before an offset of each partition.

    Args:
        bootstrap: Kafka's address.
        before: The offsets.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicRefusedError: A topic is compacted, so it must not be truncated.
    """
    from kafka import TopicPartition  # noqa: PLC0415  # see admin
    from kafka.errors import KafkaError  # noqa: PLC0415

    asked = {TopicPartition(*partition): offset for partition, offset in before.items()}
    with admin(bootstrap) as client:
        try:
            client.delete_records(asked)
        except KafkaError as error:
            names = sorted({topic for topic, _ in before})
            raise TopicRefusedError(
                f"topic {', '.join(names)} cannot be truncated",
                detail=type(error).__name__,
                hint="a compacted topic deletes older records itself, after its "
                "delete.retention.ms",
            ) from None


@contextmanager
def removal(
    bootstrap: str, partitions: Collection[PartitionId]
) -> Iterator[Callable[[float], frozenset[PartitionId]]]:
    """Watches the files of partitions that are truncated within the block.

    A copy of a partition grows with each record and shrinks only when its broker deletes files. A
    copy that is smaller than at the previous sample has therefore deleted files, even if records
    were added meanwhile. A copy that no broker reports counts as unchanged: its broker may be down.

    Args:
        bootstrap: Kafka's address.
        partitions: The partitions.

    Yields:
        A function that waits for the copies to shrink, up to a number of seconds, and returns the
        partitions with a copy that has not shrunk.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    names = sorted({topic for topic, _ in partitions})
    with admin(bootstrap) as client:
        before = copies_bytes(client, names)

        def wait(deadline_s: float) -> frozenset[PartitionId]:
            last, left = before, {copy for copy in before if copy[1:] in partitions}
            for _ in looks(deadline_s, _POLL_S):
                now = copies_bytes(client, names)
                left = {copy for copy in left if copy not in now or now[copy] >= last[copy]}
                if not left:
                    break
                last = {**last, **now}
            return frozenset((topic, partition) for _, topic, partition in left)

        yield wait
