"""AckLedger: the acknowledged records of a partition, and the offset that may be committed."""

from __future__ import annotations

from collections import deque


class AckLedger:
    """The records of one partition from the committed offset to the last one taken.

    Kafka stores one offset per group and partition: everything below it counts as processed. The
    offset to commit is therefore that of the lowest unacknowledged record. Records acknowledged
    beyond it are delivered again after a crash.

    Args:
        offset: The first offset that will be taken.
    """

    def __init__(self, offset: int) -> None:
        self._next = offset
        self._order: deque[int] = deque()  # from the lowest unacknowledged on
        self._open: set[int] = set()

    @property
    def committable(self) -> int:
        """The offset that may be committed: all records below it are acknowledged."""
        return self._order[0] if self._order else self._next

    @property
    def span(self) -> int:
        """Records from the lowest unacknowledged one to the last that was taken."""
        return len(self._order)

    @property
    def unacknowledged(self) -> int:
        """Records that were taken and not acknowledged."""
        return len(self._open)

    def take(self, offset: int) -> None:
        """Notes a record that was read; offsets rise, not always by one.

        Raises:
            ValueError: The offset is not above those that were taken.
        """
        if offset < self._next:
            raise ValueError(f"offset {offset} after {self._next - 1}")
        self._order.append(offset)
        self._open.add(offset)
        self._next = offset + 1

    def ack(self, offset: int) -> bool:
        """Acknowledges a record; returns whether it was waiting for that."""
        if offset not in self._open:
            return False
        self._open.discard(offset)
        while self._order and self._order[0] not in self._open:
            self._order.popleft()
        return True

    def pass_over(self, offset: int) -> None:
        """Records that a record needs no acknowledgement."""
        self.take(offset)
        self.ack(offset)
