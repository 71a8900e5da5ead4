"""Runs of records: the rows of a batch, as views read them.

A Kafka partition's records lie together in a batch, in the order of their offsets. The records of a
large partition come in several pieces, which may be in different tasks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from projections.errors import RecordOrderError

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


class OffsetOrder:
    """Checks that a task gets the records of each Kafka partition in the order of their offsets.

    Views apply records as they come. Spark keeps the order where one task takes all pieces of a
    partition, but does not promise it.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], int] = {}

    def check(self, topic: str, records: pa.RecordBatch) -> None:
        """Checks the next records of a topic.

        Raises:
            RecordOrderError: A record comes after one with a greater offset, or with the same.
        """
        partitions, offsets = (records.column(n).to_numpy() for n in ("partition", "offset"))
        starts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(offsets)]
        for start, end in pairwise(starts):
            of_partition, place = offsets[start:end], (topic, int(partitions[start]))
            if of_partition[0] <= self._last.get(place, -1) or (np.diff(of_partition) <= 0).any():
                raise RecordOrderError(
                    "the records of a batch are not in the order of their offsets",
                    detail=f"{topic}, partition {place[1]}",
                    hint="the job reads the batch again",
                )
            self._last[place] = int(of_partition[-1])


def by_topic(
    batch: pa.RecordBatch, order: OffsetOrder | None = None
) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """Splits a batch into runs of one topic.

    Raises:
        RecordOrderError: The given order has ended; see `OffsetOrder`.
    """
    topics = batch.column("topic").to_pylist()
    columns = [batch.column(name).to_pylist() for name in RECORD_COLUMNS]
    for start, end in _spans(topics):
        if order is not None:
            order.check(topics[start], batch.slice(start, end - start))
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
