"""Makes the last record of each key in a compacted topic the newest one, after a snapshot.

A snapshot runs while changes stream. A change that the snapshot does not see may precede the read
row in the topic. Views compare log positions and are correct. Compaction compares offsets and would
keep the old row. After a snapshot, overtaken changes are therefore sent again to their topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import consumer, named
from cdc.broker.errors import RecordRefusedError
from cdc.broker.reading.span import up_to
from cdc.broker.reading.tail import epoch_of
from cdc.broker.topics.offsets import partitions
from cdc.change_event import ChangeEvent
from cdc.envelope import Operation

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

_READ: Final = b'"op":"r"'
"""Occurs in the bytes of every snapshot row; within a value, its quotes would be escaped."""

_SLACK_MS: Final = 60_000  # between the clocks of brokers and database
_SEND_S: Final = 60.0


@dataclass(slots=True)
class _Newest:
    version: int
    record: Any
    deletes: bool
    overtaken: bool = False


class LastRecords:
    """Follows one partition, and finds changes overtaken by an older record of their key.

    Snapshot rows, and keys without a change, need no memory.
    """

    def __init__(self) -> None:
        self._newest: dict[bytes, _Newest] = {}

    def take(self, record: Any) -> None:
        """Takes the next record of the partition.

        Raises:
            EnvelopeError: It is not a row change.
        """
        if record.key is None or record.value is None:  # a delete's tombstone follows the delete
            return
        known = self._newest.get(record.key)
        if known is None and _READ in record.value:
            return
        change = ChangeEvent.parse(record.key, record.value, epoch_of(record))
        version = change.position.version
        if known is not None and version < known.version:
            known.overtaken = True
        else:
            deletes = change.operation is Operation.DELETE
            self._newest[record.key] = _Newest(version, record, deletes)

    def overtaken(self) -> list[tuple[Any, bool]]:
        """Returns the records to be sent again, and whether a tombstone follows; forgets them."""
        found = [(one.record, one.deletes) for one in self._newest.values() if one.overtaken]
        for one in self._newest.values():
            one.overtaken = False
        return found


def settle(bootstrap: str, topic: str, since: datetime | None) -> int:
    """Sends overtaken changes again until there are none; returns the number of records.

    Args:
        bootstrap: Kafka's address.
        topic: The topic.
        since: Start of the snapshot; None to check the whole topic.

    Raises:
        BrokerUnreachableError: No broker answers, or nothing came for a minute.
        RecordRefusedError: Kafka does not take a record.
    """
    sent = 0
    with consumer(bootstrap) as client:
        topic_partitions = partitions(client, [topic])
        client.assign(topic_partitions)
        client.seek_to_beginning(*topic_partitions)
        if since is not None:
            at_ms = int(since.timestamp() * 1000) - _SLACK_MS
            for topic_partition, found in client.offsets_for_times(
                dict.fromkeys(topic_partitions, at_ms)
            ).items():
                if found is not None:
                    client.seek(topic_partition, found.offset)
        followed = {topic_partition: LastRecords() for topic_partition in topic_partitions}
        while True:
            for topic_partition, records in up_to(
                client, client.end_offsets(topic_partitions), topic
            ):
                for record in records:
                    followed[topic_partition].take(record)
            again = [
                found
                for topic_partition in topic_partitions
                for found in followed[topic_partition].overtaken()
            ]
            if not again:
                return sent
            _send(bootstrap, again)
            sent += len(again)


def _send(bootstrap: str, records: Iterable[tuple[Any, bool]]) -> None:
    from kafka import KafkaProducer  # noqa: PLC0415  # see admin
    from kafka.errors import KafkaError  # noqa: PLC0415

    with named(bootstrap):
        client = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            max_in_flight_requests_per_connection=1,
        )
        try:
            answers = []
            for record, deletes in records:
                target = {"partition": record.partition, "headers": list(record.headers)}
                answers.append(client.send(record.topic, record.value, key=record.key, **target))
                if deletes:
                    answers.append(client.send(record.topic, None, key=record.key, **target))
            client.flush(timeout=_SEND_S)
            for answer in answers:
                answer.get(timeout=_SEND_S)
        except KafkaError as error:
            raise RecordRefusedError(
                "kafka did not acknowledge resent records",
                detail=type(error).__name__,
                hint="headwater logs kafka",
            ) from error
        finally:
            client.close(timeout=_SEND_S)
