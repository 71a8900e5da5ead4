"""Plain rows: decodes records that each give one whole row or one delete.

A record goes through the same delivery as in a batch of the job, into a store that only collects
changes. The numbers of records with another result are returned, and the replay delivers them
itself, from all their data in the archive. The same applies to a record whose row does not meet an
expectation: the replay counts it, and acts as the view declares.

Only the parts of a record that form a row are read: the archive has its log position in columns, as
determined when the record was archived.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import CdcError
from projections.archive.rebuilding.columnar_rows import ColumnarDecoder
from projections.archive.survey import versions_of
from projections.changes.applier import TaskApplier
from projections.changes.row_change import Applied
from projections.errors import ProjectionError
from projections.planning.key_forms import key_in_form
from projections.stores.delta.arrow import deletes_schema, keys_table, rows_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from projections.changes.row_change import RowChange
    from projections.changes.task_outcome import BlockedKeys
    from projections.planning.view_plan import ViewPlan

    Integers = NDArray[np.int64]
    Amended = Callable[[Sequence[RowChange], Integers], list[RowChange]]
    """Returns changes with times, given the numbers of their records."""

READ: Final = (
    "partition",
    "offset",
    "recorded_at",
    "op",
    "epoch",
    "lsn",
    "total_order",
    "committed_at",
    "key",
    "after",
    "raw_value",
)
"""Columns of a record that a row is made of."""

TAKEN_AT_ONCE: Final = 8_192
"""Records that are decoded together, unless by columns."""

T = TypeVar("T")
_PARTS: Final = (
    '{"op":"',
    '","source":{"sequence":"[null,\\"',
    '\\"]","ts_us":',
    '},"transaction":{"total_order":',
    '},"after":',
    "}",
)


class PlainRowDecoder:
    """Decodes records of one topic to rows and deletes of a view's tables.

    Args:
        plan: The view.
        topic: The topic.
        held: Quarantined keys, by view.
        amended: See `PlainChanges`.
    """

    def __init__(
        self,
        plan: ViewPlan,
        topic: str,
        held: Mapping[str, BlockedKeys],
        amended: Amended | None = None,
    ) -> None:
        self._plan = plan
        by_columns = plan.events is None and amended is None
        self._columnar = ColumnarDecoder.of(plan, topic, held) if by_columns else None
        self._reader = PlainChanges(plan, topic, held, not plan.append_only, amended)

    def parts(
        self, records: pa.RecordBatch, rows: Integers, unwritten: list[int]
    ) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Decodes records by columns if that is exact, and all others by the reducer.

        Args:
            records: Records.
            rows: Their numbers.
            unwritten: Receives the numbers of records with another result.

        Yields:
            Rows and deletes.
        """
        if self._columnar is not None:
            upserts, deletes, exact = self._columnar.decode(records)
            yield upserts, deletes
            if exact.all():
                return
            records, rows = records.filter(pa.array(~exact)), rows[~exact]
        for start in range(0, records.num_rows, TAKEN_AT_ONCE):
            piece = records.slice(start, TAKEN_AT_ONCE)
            own = rows[start : start + piece.num_rows]
            for made, _ in self._reader.taken(piece, own, unwritten, self.tables):
                yield made

    def tables(self, changes: list[RowChange]) -> tuple[pa.Table, pa.Table]:
        """Returns the rows and deletes of changes.

        Raises:
            UnholdableValueError: A value has no exact form in a table.
        """
        upserts = [change for change in changes if change.row is not None]
        deletes = [change for change in changes if change.row is None]
        if not deletes:
            return rows_table(self._plan, upserts), deletes_schema(self._plan).empty_table()
        return rows_table(self._plan, upserts), keys_table(self._plan, deletes)


@dataclass(frozen=True, slots=True)
class PlainChanges:
    """Reads records that each give one whole row or one delete, as live delivery does.

    Attributes:
        plan: The view.
        topic: The topic.
        held: Quarantined keys, by view.
        planned_keys: Whether only keys written in the form of the plan are accepted.
        amended: Adds times from other records, given the numbers of the records; None if the view
            needs none.
    """

    plan: ViewPlan
    topic: str
    held: Mapping[str, BlockedKeys]
    planned_keys: bool = False
    amended: Amended | None = None

    def taken(
        self,
        piece: pa.RecordBatch,
        rows: Integers,
        unwritten: list[int],
        made_of: Callable[[list[RowChange]], T],
    ) -> Iterator[tuple[T, Integers]]:
        """Decodes records together; if that does not result in a change for each, in halves.

        Args:
            piece: Records.
            rows: Their numbers.
            unwritten: Receives the numbers of records with another result.
            made_of: Converts changes; raises a `ProjectionError` if one of them does not fit.

        Yields:
            The changes, and their records.
        """
        changes = self._changes(piece)
        if changes is not None:
            met = self._met(changes)
            chosen = [change for change, holds in zip(changes, met.tolist(), strict=True) if holds]
            if self.amended is not None:
                chosen = self.amended(chosen, rows[met])
            try:
                made = made_of(chosen) if chosen else None
            except ProjectionError:
                pass  # the replay raises the same error, and names the record
            else:
                unwritten += rows[~met].tolist()
                if made is not None:
                    yield made, rows[met]
                return
        if len(rows) == 1:
            unwritten += rows.tolist()
            return
        middle = len(rows) // 2
        yield from self.taken(piece.slice(0, middle), rows[:middle], unwritten, made_of)
        yield from self.taken(piece.slice(middle), rows[middle:], unwritten, made_of)

    def _changes(self, piece: pa.RecordBatch) -> list[RowChange] | None:
        """Returns the changes of records, in order; None if a record has another result."""
        if piece.column("raw_value").null_count < piece.num_rows:
            return None  # it is no envelope as the connector writes it
        made = _records(piece)
        schema = self.plan.schema
        if self.planned_keys and not all(key_in_form(schema, record[0]) for record in made):
            return None
        collector = _Collector()
        plan = replace(self.plan, expectations=())  # see `_met`
        delivery = TaskApplier([plan], lambda: collector, self.held, changes_per_write=1 << 62)
        try:
            delivery.take(self.topic, made)
            delivery.finish()
        except (CdcError, ProjectionError):
            return None  # the replay gets the same error, and reports it
        if delivery.waiting or delivery.truncated:
            return None
        versions = [change.version for change in collector.changes]
        if versions != versions_of(piece).tolist() or any(
            c.unchanged_columns for c in collector.changes
        ):
            return None
        return collector.changes

    def _met(self, changes: list[RowChange]) -> NDArray[np.bool_]:
        """Returns which changes have no row, or one that meets every expectation."""
        if not self.plan.expectations:
            return np.ones(len(changes), np.bool_)
        met = self.plan.inspection().met
        return np.array([change.row is None or met(change.row) for change in changes], np.bool_)


class _Collector:
    """A store that collects changes, and has no earlier ones."""

    def __init__(self) -> None:
        self.changes: list[RowChange] = []

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:  # noqa: ARG002
        self.changes += changes
        return Applied()

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:  # noqa: ARG002
        return [0] * len(changes)

    def __getattr__(self, name: str) -> Any:
        raise ProjectionError("a task takes rows only", detail=name)


def _records(piece: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Returns records in the form of `Record`, with values that have only the parts of a row."""
    columns = [
        piece.column("op"),
        piece.column("lsn"),
        piece.column("committed_at").cast(pa.int64()),
        pc.fill_null(piece.column("total_order"), 0),
        pc.fill_null(piece.column("after").cast(pa.large_string()), "null"),
    ]
    texts = [
        (column.dictionary_decode() if pa.types.is_dictionary(column.type) else column).cast(
            pa.large_string()
        )
        for column in columns
    ]
    first, *others = (pa.scalar(part, pa.large_string()) for part in _PARTS)
    pairs = [each for pair in zip(texts, others, strict=True) for each in pair]
    values = pc.binary_join_element_wise(first, *pairs, pa.scalar("", pa.large_string()))
    return list(
        zip(
            piece.column("key").cast(pa.large_binary()).to_pylist(),
            values.cast(pa.large_binary()).to_pylist(),
            piece.column("epoch").cast(pa.string()).to_pylist(),
            piece.column("partition").to_pylist(),
            piece.column("offset").to_pylist(),
            [None] * piece.num_rows,
            piece.column("recorded_at").cast(pa.int64()).to_pylist(),
            strict=True,
        )
    )
