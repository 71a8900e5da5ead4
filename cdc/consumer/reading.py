"""Reads the changes that topics have, without a consumer group."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def read_changes(  # noqa: PLR0913
    kafka: str | CaptureSpec,
    *,
    source: str | None = None,
    tables: Iterable[str | TableName] | None = None,
    start: GroupStart = GroupStart.BEGINNING,
    dsn: str | None = None,
    schemas: Mapping[TableName, TableSchema] | None = None,
    columns: Mapping[str, ColumnRules] | None = None,
) -> Iterator[Change]:
    """Yields the changes that the topics have now, without a consumer group.

    Nothing is committed, and acknowledgements have no effect. Changes of a partition come in their
    order, partitions one after another.

    Args:
        kafka: See `changes`.
        source: See `changes`.
        tables: See `changes`.
        start: Where to begin in each partition.
        dsn: See `changes`.
        schemas: See `changes`.
        columns: See `changes`.

    Raises:
        ConsumerSpecError: See `changes`.
        PostgresError: The catalog cannot be read.
        BrokerUnreachableError: No broker answers.
        TopicMissingError: A table has no topic.
        EnvelopeError: A record is no change of its table.
        ValueDecodeError: A value is beyond Python's range.
    """
    spec, rows = opened(kafka, "reading", source, tables, start, dsn, schemas, columns, {})
    with searching(spec.kafka_bootstrap) as client:
        for place in partitions(client, spec.topics):
            partition = SearchedPartition(client, place)
            begin = locate(start, partition)
            client.assign([place])
            client.seek(place, begin)
            for _, records in up_to(client, {place: partition.end}, place.topic):
                for record in records:
                    if record.value is not None and record.offset < partition.end:
                        yield decoded(record, spec.topics[place.topic], rows, _NoOutcome())


class _NoOutcome:
    """Outcomes of changes that no group reads: none counts."""

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
