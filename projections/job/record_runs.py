"""Runs of records: the rows of a batch, as views read them.

A Kafka partition's records lie together in a batch, in the order of their offsets. The records of a
large partition come in several pieces, which may be in different tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

RECORD_COLUMNS: Final = (
    *("key", "value", "epoch", "partition", "offset"),
    *("old_key", "sent_at_us"),
)
"""Columns of a batch beside the topic, in the order of a `Record`."""

PIECE: Final = "piece"
"""Column with the number of a record's piece, in a batch that several tasks read."""


class BacklogPiece(NamedTuple):
    """Consecutive records of a Kafka partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        number: Number of the piece in the batch.
    """

    topic: str
    partition: int
    number: int


def by_topic(batch: pa.RecordBatch) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Splits a batch into runs of one topic."""
    topics = batch.column("topic").to_pylist()
    columns = [batch.column(name).to_pylist() for name in RECORD_COLUMNS]
    for start, end in _spans(topics):
        columns_of_run = [column[start:end] for column in columns]
        yield topics[start], list(zip(*columns_of_run, strict=True))


def by_piece(batch: pa.RecordBatch) -> Iterator[tuple[BacklogPiece, pa.RecordBatch]]:
    """Splits a batch into runs of one piece, without converting their records."""
    columns = [batch.column(name).to_pylist() for name in ("topic", "partition", PIECE)]
    pieces = list(zip(*columns, strict=True))
    for start, end in _spans(pieces):
        yield BacklogPiece._make(pieces[start]), batch.slice(start, end - start)


def records_of(run: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Converts the records of a run."""
    return list(zip(*(run.column(name).to_pylist() for name in RECORD_COLUMNS), strict=True))


def _spans(values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Yields start and end of each stretch of equal values."""
    start = 0
    for place in range(1, len(values) + 1):
        if place == len(values) or values[place] != values[start]:
            yield start, place
            start = place
