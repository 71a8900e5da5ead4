"""RecordSender: sends single records to any topic, and waits for each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import named
from cdc.broker.errors import RecordRefusedError
from cdc.broker.topics import topics
from cdc.broker.topics.topics import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

_SEND_S: Final = 20.0


class RecordSender:
    """Sends records and waits until Kafka has them.

    Args:
        bootstrap: Kafka, `host:port[,host:port]`.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._opening = threading.Lock()
        self._producer: Any = None
        self._known: set[str] = set()

    def send(self, topic: str, key: bytes, value: bytes, headers: Mapping[str, str]) -> None:
        """Sends a record; a missing topic is created.

        Raises:
            BrokerUnreachableError: No broker answers.
            RecordRefusedError: Kafka has not accepted it.
        """
        from kafka.errors import KafkaError  # noqa: PLC0415  # see admin

        if topic not in self._known:
            topics.ensure(self._bootstrap, [TopicSpec(topic)])
            self._known.add(topic)
        encoded = [(name, text.encode()) for name, text in headers.items()]
        producer = self._sender()
        with named(self._bootstrap):
            try:
                producer.send(topic, value, key=key, headers=encoded).get(timeout=_SEND_S)
            except KafkaError as error:
                raise RecordRefusedError(
                    "kafka did not acknowledge a record",
                    detail=type(error).__name__,
                    hint="headwater logs kafka",
                ) from error

    def close(self) -> None:
        """Closes the connections."""
        if self._producer is not None:
            self._producer.close(timeout=_SEND_S)

    def _sender(self) -> Any:
        from kafka import KafkaProducer  # noqa: PLC0415  # see admin

        with self._opening, named(self._bootstrap):
            if self._producer is None:
                self._producer = KafkaProducer(
                    bootstrap_servers=self._bootstrap.split(","),
                    acks="all",
                    metrics_enabled=False,
                )
        return self._producer
