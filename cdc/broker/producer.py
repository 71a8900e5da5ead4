"""Sending records, many at a time, with one acknowledgement for all of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.admin import named
from cdc.broker.errors import RecordRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest record that is sent; topics are made to take as much."""

_BATCH_BYTES: Final = 512 * 1024
_FLUSH_S: Final = 120


class Producer:
    """Sends records to topics; partitions follow the keys as the connector's do."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._failure: Exception | None = None

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Hands one record over; `flush` tells whether it arrived."""
        sent = self._client.send(topic, key=key, value=value, headers=list(headers))
        sent.add_errback(self._failed)

    def flush(self) -> None:
        """Waits until the brokers have acknowledged everything that was sent.

        Raises:
            RecordRefusedError: They have not: none of it counts as sent.
        """
        self._client.flush(timeout=_FLUSH_S)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise RecordRefusedError(
                "kafka has not taken records that were sent",
                detail=type(failure).__name__,
                hint="headwater logs kafka",
            )

    def _failed(self, error: Exception) -> None:
        self._failure = error


@contextmanager
def producer(bootstrap: str) -> Iterator[Producer]:
    """Opens a producer.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    from kafka import KafkaProducer  # noqa: PLC0415  # see admin

    with named(bootstrap):
        client = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks="all",
            compression_type="lz4",
            linger_ms=5,
            batch_size=_BATCH_BYTES,
            max_request_size=RECORD_BYTES_MAX,
        )
        try:
            yield Producer(client)
        finally:
            client.close(timeout=_FLUSH_S)
