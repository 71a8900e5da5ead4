"""Follows the changes in topics as they arrive; bulk data goes through Spark instead."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import partitions
from cdc.change_event import EPOCH_HEADER, ChangeEvent
from cdc.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_POLL_MS: Final = 200


def follow(
    bootstrap: str, topics: Sequence[str], deadline_s: float, *, from_start: bool = True
) -> Iterator[ChangeEvent]:
    """Yields changes as they arrive, without tombstones; ends after a time.

    Changes of one partition are in its order; there is no order between partitions.

    Args:
        bootstrap: Kafka's address.
        topics: Change topics; they must exist.
        deadline_s: How long to listen, seconds.
        from_start: False to yield only changes that arrive from now on.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: One of the topics does not exist.
        EnvelopeError: A record is not a change.
    """
    deadline = time.monotonic() + deadline_s
    with consumer(bootstrap) as client:
        topic_partitions = partitions(client, topics)
        client.assign(topic_partitions)
        if from_start:
            client.seek_to_beginning(*topic_partitions)
        else:
            for topic_partition, end in client.end_offsets(topic_partitions).items():
                client.seek(topic_partition, end)
        while (left_s := deadline - time.monotonic()) > 0:
            polled = client.poll(timeout_ms=max(1, min(_POLL_MS, int(left_s * 1000))))
            for records in polled.values():
                for record in records:
                    if record.value is not None:
                        yield ChangeEvent.parse(record.key, record.value, epoch_of(record))


def first_change(bootstrap: str, topics: Sequence[str], deadline_s: float) -> ChangeEvent | None:
    """Returns the first change that the topics have or receive; None if none arrives in time."""
    return next(follow(bootstrap, topics, deadline_s), None)


def epoch_of(record: Any) -> int:
    """Returns the source's epoch that the connector wrote on a record.

    Raises:
        EnvelopeError: The record has none, so the connector did not write it.
    """
    for name, value in record.headers:
        if name == EPOCH_HEADER:
            return int(value)
    raise EnvelopeError(
        "record has no epoch",
        detail=f"topic {record.topic}, partition {record.partition}, offset {record.offset}",
        hint="only the connector may write to change topics; find the other producer",
    )
