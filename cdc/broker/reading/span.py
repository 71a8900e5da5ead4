"""Spans: the records of partitions before given offsets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.errors import BrokerUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

POLL_MS: Final = 200
SILENT_S: Final = 60.0
"""Longest silence of a topic that has more records."""


def up_to(
    client: Any, ends: Mapping[Any, int], topic: str, records_max: int | None = None
) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Yields lists of records with their partition, until a client has reached given offsets.

    The last list may extend beyond them.

    Args:
        client: Kafka's consumer, positioned at the first offset to read.
        ends: Offset of each partition at which to stop.
        topic: Their topic, for error messages.
        records_max: Most records of one list; None for the client's limit.

    Raises:
        BrokerUnreachableError: No record arrived for a minute.
    """
    left = _left(client, ends)
    deadline = time.monotonic() + SILENT_S
    while left:
        yield from client.poll(timeout_ms=POLL_MS, max_records=records_max).items()
        before, left = left, _left(client, ends)
        if left < before:
            deadline = time.monotonic() + SILENT_S
        elif time.monotonic() > deadline:
            raise silent(topic)


def silent(topic: str) -> BrokerUnreachableError:
    """Returns the error of a topic that was silent for `SILENT_S`."""
    return BrokerUnreachableError(
        f"topic {topic} cannot be read",
        detail=f"nothing for {SILENT_S:.0f} s",
        hint="headwater status, headwater logs kafka",
    )


def _left(client: Any, ends: Mapping[Any, int]) -> int:
    """Returns the number of offsets from a client's position to the wanted ones."""
    return sum(max(0, end - client.position(partition)) for partition, end in ends.items())
