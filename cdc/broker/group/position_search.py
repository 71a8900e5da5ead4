"""Finds an offset in a partition: by time, or by the next change."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import consumer, named
from cdc.broker.reading.span import up_to
from cdc.broker.reading.tail import epoch_of
from cdc.change_event import ChangeEvent
from cdc.errors import EnvelopeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.broker.topics.extent import PartitionId

_RECORDS: Final = 500


class SearchedPartition:
    """A partition with the offsets that it had when the search began.

    Attributes:
        begin: Offset of its first record.
        end: Offset after its last one.
    """

    def __init__(self, client: Any, partition: PartitionId) -> None:
        from kafka import TopicPartition  # noqa: PLC0415  # see admin

        self._client = client
        self._partition = TopicPartition(*partition)
        client.assign([self._partition])
        self.begin: int = client.beginning_offsets([self._partition])[self._partition]
        self.end: int = client.end_offsets([self._partition])[self._partition]

    def at_time(self, time_ms: int) -> int:
        """Returns the first offset whose record was written at the time or later, or `end`."""
        found = self._client.offsets_for_times({self._partition: time_ms}).get(self._partition)
        return self.end if found is None else min(found.offset, self.end)

    def streamed(self, offset: int, before: int) -> tuple[int, ChangeEvent] | None:
        """Returns the first streamed change in a range of offsets, with its offset."""
        for partition, change in self.changes(offset, before):
            if change.transaction_id is not None:  # snapshot rows have none
                return partition, change
        return None

    def committed_since(self, offset: int, time_us: int) -> int:
        """Returns the first offset, from a given one, with a change committed then or later."""
        for partition, change in self.changes(offset, self.end):
            if change.committed_at_us >= time_us:
                return partition
        return self.end

    def changes(self, offset: int, before: int) -> Iterator[tuple[int, ChangeEvent]]:
        """Yields the changes in a range of offsets; other records are omitted."""
        for record in self._records(offset, before):
            if record.value is not None:
                try:
                    yield (
                        record.offset,
                        ChangeEvent.parse(record.key, record.value, epoch_of(record)),
                    )
                except EnvelopeError:
                    continue

    def _records(self, offset: int, before: int) -> Iterator[Any]:
        if offset >= before:
            return
        self._client.seek(self._partition, offset)
        ends = {self._partition: before}
        for _, records in up_to(self._client, ends, self._partition.topic, _RECORDS):
            for record in records:
                if record.offset >= before:
                    return
                yield record


@contextmanager
def searching(bootstrap: str) -> Iterator[Any]:
    """Opens a client that searches partitions one after another; see `SearchedPartition`.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    with named(bootstrap), consumer(bootstrap) as client:
        yield client
