"""A compacted topic of one partition that stores a group's durable state.

A caller that reads it to the end has the last value of every key. A record without a value deletes
its key.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import consumer, named
from cdc.broker.errors import RecordRefusedError
from cdc.broker.reading.span import SILENT_S, silent, up_to
from cdc.broker.topics import topics
from cdc.broker.topics.offsets import partitions
from cdc.broker.topics.topics import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MIB: Final = 1024 * 1024
RECORD_BYTES_MAX: Final = 17 * _MIB
"""The largest change with its headers."""

_CONFIGS: Final = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(RECORD_BYTES_MAX),
    # Deleted keys disappear within the hour; others are kept without limit.
    "delete.retention.ms": "3600000",
    "segment.ms": "3600000",
}
_POLL_MS: Final = 200
_SEND_S: Final = 60.0


class KeyValueTopic:
    """Reads and writes such a topic, and creates it if it is missing.

    Threads: `read_new` and `catch_up` must be called from one thread, and `read` from one;
    `write` may be called from any.

    Args:
        bootstrap: Kafka's address.
        topic: Its name.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicRefusedError: The topic is missing and cannot be created.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        topics.ensure(bootstrap, [TopicSpec(topic, 1, _CONFIGS)])
        self._bootstrap = bootstrap
        self._topic = topic
        self._open = ExitStack()
        self._tail = self._open.enter_context(consumer(bootstrap))
        (self._partition,) = partitions(self._tail, [topic])
        self._tail.assign([self._partition])
        self._tail.seek_to_beginning(self._partition)
        self._reader: Any = None
        self._producer: Any = None
        self._opening = threading.Lock()

    def read_new(self) -> Sequence[Any]:
        """Returns records written since the last call, without waiting."""
        found: Sequence[Any] = self._tail.poll(timeout_ms=0).get(self._partition, ())
        return found

    def catch_up(self) -> Iterator[Any]:
        """Yields all unread records that were written before now.

        Raises:
            BrokerUnreachableError: It could not be read in time.
        """
        ends = self._tail.end_offsets([self._partition])
        for _, records in up_to(self._tail, ends, self._topic):
            yield from records

    def read(self, offset: int) -> Any:
        """Returns the record at an offset; None if it was deleted.

        Raises:
            BrokerUnreachableError: It could not be read in time.
        """
        if self._reader is None:
            self._reader = self._open.enter_context(consumer(self._bootstrap))
            self._reader.assign([self._partition])
        self._reader.seek(self._partition, offset)
        deadline = time.monotonic() + SILENT_S
        while time.monotonic() < deadline:
            polled = self._reader.poll(timeout_ms=_POLL_MS, max_records=1)
            for record in polled.get(self._partition, ()):
                return record if record.offset == offset else None
            if self._reader.position(self._partition) > offset:
                return None
        raise silent(self._topic)

    def write(
        self,
        key: bytes,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]],
        written: Callable[[int], None],
        refused: Callable[[RecordRefusedError], None],
    ) -> None:
        """Writes a message; messages with one key are written in the order of the calls.

        Args:
            key: The message's key.
            value: The value; None deletes the key.
            headers: Headers of the message.
            written: Called with its offset, in another thread, once the brokers have stored it.
            refused: Called if the brokers refuse it.
        """

        def failed(error: Exception) -> None:
            refused(
                RecordRefusedError(
                    f"kafka did not acknowledge a record for {self._topic}",
                    detail=type(error).__name__,
                    hint="headwater logs kafka",
                )
            )

        from kafka.errors import KafkaError  # noqa: PLC0415  # see admin

        try:
            sent = self._sender().send(
                self._topic, key=key, value=value, headers=list(headers), partition=0
            )
        except KafkaError as error:
            failed(error)
            return
        sent.add_callback(lambda where: written(where.offset))
        sent.add_errback(failed)

    def flush(self) -> None:
        """Waits until all passed records are written or refused."""
        if self._producer is not None:
            self._producer.flush(timeout=_SEND_S)

    def close(self) -> None:
        """Closes the connections."""
        if self._producer is not None:
            self._producer.close(timeout=_SEND_S)
        self._open.close()

    def _sender(self) -> Any:
        from kafka import KafkaProducer  # noqa: PLC0415  # see admin

        with self._opening, named(self._bootstrap):
            if self._producer is None:
                self._producer = KafkaProducer(
                    bootstrap_servers=self._bootstrap.split(","),
                    acks="all",
                    compression_type="lz4",
                    max_request_size=RECORD_BYTES_MAX,
                    metrics_enabled=False,
                )
        return self._producer


def read_all(bootstrap: str, topic: str) -> Iterator[Any]:
    """Yields all records of such a topic; nothing if the topic does not exist.

    Raises:
        BrokerUnreachableError: No record arrived for a minute.
    """
    with consumer(bootstrap) as client:
        if topic not in client.topics():
            return
        (partition,) = partitions(client, [topic])
        client.assign([partition])
        client.seek_to_beginning(partition)
        for _, records in up_to(client, client.end_offsets([partition]), topic):
            yield from records
