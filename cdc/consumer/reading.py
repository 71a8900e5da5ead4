"""Reads the changes in topics without a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.broker.group.position_search import SearchedPartition, searching
from cdc.broker.reading.span import up_to
from cdc.broker.topics.offsets import partitions
from cdc.consumer.changes import decoded
from cdc.consumer.opening import opened
from cdc.consumer.start import GroupStart, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cdc.capture import CaptureSpec
    from cdc.column_rule import ColumnRules
    from cdc.consumer.change import Change
    from cdc.table import TableName, TableSchema


class ChangeDecoder:
    """Decodes records of a source's topics, however they were read.

    Args:
        kafka: See `changes`; no broker is contacted.
        source: See `changes`.
        tables: See `changes`.
        start: Where a reader begins in each partition.
        dsn: See `changes`.
        schemas: See `changes`.
        columns: See `changes`.

    Raises:
        ConsumerSpecError: See `changes`.
        PostgresError: The catalog cannot be read.
    """

    def __init__(  # noqa: PLR0913
        self,
        kafka: str | CaptureSpec,
        *,
        source: str | None = None,
        tables: Iterable[str | TableName] | None = None,
        start: GroupStart = GroupStart.BEGINNING,
        dsn: str | None = None,
        schemas: Mapping[TableName, TableSchema] | None = None,
        columns: Mapping[str, ColumnRules] | None = None,
    ) -> None:
        self.spec, self._rows = opened(
            kafka, "reading", source, tables, start, dsn, schemas, columns, {}
        )

    def change(self, record: Any) -> Change:
        """Returns the change of a record, whose acknowledgements have no effect.

        Args:
            record: With `topic`, `partition`, `offset`, `key`, `value` and `headers`, as Kafka
                delivers it.

        Raises:
            EnvelopeError: The record is no change of its topic's table.
            ValueDecodeError: A value is beyond Python's range.
        """
        return decoded(record, self.spec.topics[record.topic], self._rows, _NoOutcome())


def read_changes(
    kafka: str | CaptureSpec, *, start: GroupStart = GroupStart.BEGINNING, **options: Any
) -> Iterator[Change]:
    """Yields the changes that are in the topics now, without a consumer group.

    Nothing is committed, and acknowledgements have no effect. Partitions are read one after
    another, each in its order.

    Args:
        kafka: See `changes`.
        start: Where to begin in each partition.
        options: `source`, `tables`, `dsn`, `schemas` and `columns`; see `changes`.

    Raises:
        ConsumerSpecError: See `changes`.
        PostgresError: The catalog cannot be read.
        BrokerUnreachableError: No broker answers.
        TopicMissingError: A table has no topic.
        EnvelopeError: A record is no change of its table.
        ValueDecodeError: A value is beyond Python's range.
    """
    decoder = ChangeDecoder(kafka, start=start, **options)
    spec = decoder.spec
    with searching(spec.kafka_bootstrap) as client:
        for topic_partition in partitions(client, spec.topics):
            partition = SearchedPartition(client, topic_partition)
            begin = locate(start, partition)
            client.assign([topic_partition])
            client.seek(topic_partition, begin)
            for _, records in up_to(
                client, {topic_partition: partition.end}, topic_partition.topic
            ):
                for record in records:
                    if record.value is not None and record.offset < partition.end:
                        yield decoder.change(record)


class _NoOutcome:
    """The outcome of a change read without a group, which has no effect."""

    def ack(self) -> bool:
        """See `Change.ack`."""
        return False

    def fail(self, error: BaseException) -> bool:  # noqa: ARG002
        """See `Change.fail`."""
        return False

    def park(self, error: BaseException) -> bool:  # noqa: ARG002
        """See `Change.park`."""
        return False

    def put_back(self) -> bool:
        """See `Change.put_back`."""
        return False
