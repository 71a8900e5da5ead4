"""One short conversation with the brokers.

kafka's library is loaded when a conversation begins, so the command line's help and the event store
work without it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdc.broker.errors import BrokerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def admin(bootstrap: str) -> Iterator[Any]:
    """Opens kafka's administration client.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    from kafka import KafkaAdminClient  # noqa: PLC0415

    with named(bootstrap):
        client = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        try:
            yield client
        finally:
            client.close()


@contextmanager
def consumer(bootstrap: str) -> Iterator[Any]:
    """Opens a consumer without a group, which reads from given offsets.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    from cdc.broker.client.bounded_consumer import BoundedConsumer  # noqa: PLC0415

    with named(bootstrap):
        client = BoundedConsumer(
            bootstrap_servers=bootstrap.split(","),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        try:
            yield client
        finally:
            client.close(autocommit=False)


@contextmanager
def named(bootstrap: str) -> Iterator[None]:
    """Raises `BrokerUnreachableError` for temporary errors; other errors pass unchanged."""
    from kafka.errors import RetriableError  # noqa: PLC0415

    try:
        yield
    except RetriableError as error:
        raise BrokerUnreachableError(
            "kafka does not answer",
            detail=f"{bootstrap}: {type(error).__name__}",
            hint="headwater status, headwater logs kafka",
        ) from error
