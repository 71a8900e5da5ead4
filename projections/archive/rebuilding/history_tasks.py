"""Histories in tasks: all states of some keys, made from all their changes.

A task takes all records of some keys, as `divide_tasks` has divided them, decodes them as live
delivery does, and stores the changes and states of these keys for the commit.

All records of a key are left to the replay if the division determined that, if one of them does not
result in one whole change, if the key is quarantined, or if it has more changes than a task holds
at a time.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from projections.archive.progress import rest
from projections.archive.rebuilding.columnar_rows import ColumnarDecoder
from projections.archive.rebuilding.divide_tasks import ROW, TOPIC
from projections.archive.rebuilding.divided_records import BucketTask
from projections.archive.rebuilding.plain_rows import PlainChanges
from projections.archive.survey import flags, integers
from projections.changes.row_change import read
from projections.common.pooled_memory import pooled_memory
from projections.definition.columns import VERSION_COLUMN
from projections.stores.delta.history.arrow import COMMIT, INSERTED, LIVE, HistoryForm
from projections.stores.delta.history.batch import IncomingChange
from projections.stores.delta.history.columnar import known_changes, states_of
from projections.stores.delta.history.states import history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.archive.fold import Integers
    from projections.changes.row_change import RowChange
    from projections.common.throttle import Throttle
    from projections.stores.delta.history.arrow import TableKey
    from projections.stores.delta.history.states import HistoryState

HISTORIES: Final = pa.schema(
    [
        ("changes_file", pa.string()),
        ("states_file", pa.string()),
        ("upserted", pa.int64()),
        ("deleted", pa.int64()),
        ("version", pa.int64()),
        ("at_us", pa.int64()),
        ("left", pa.list_(pa.int64())),
    ]
)

_INSTANT: Final = pa.timestamp("us", "UTC")
_DECODED_ROWS: Final = 32_768
_REDUCED_ROWS: Final = 8_192


@dataclass(frozen=True, slots=True, kw_only=True)
class FillHistories(BucketTask):
    """Makes the changes and states of keys; see `BucketTask`.

    Attributes:
        commit: Number of the commit of the changes.
    """

    commit: int
    result_schema: ClassVar = HISTORIES

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Processes the buckets with these numbers."""
        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, HISTORIES, self._bucket)

    def _bucket(self, number: int) -> dict[str, Any]:
        throttle, unwritten = self.pace.throttle(), list[int]()
        form, held = HistoryForm(self.plan), self.held.get(self.plan.name)
        upserted = deleted = version = at_us = 0
        with ExitStack() as stack:
            schemas = form.changes_schema, form.states_schema
            made = [stack.enter_context(self.files.writing(schema)) for schema in schemas]
            for records in self.divided.portions(self.first + number, held, unwritten):
                changes, numbers = self._changes(form, records, unwritten, throttle)
                if not len(changes):
                    continue
                made[0][1].write_table(changes)
                made[1][1].write_table(_states(form, changes, numbers))
                live = int(pc.sum(changes[LIVE]).as_py())
                upserted, deleted = upserted + live, deleted + len(changes) - live
                version = max(version, pc.max(changes[VERSION_COLUMN]).as_py())
                at_us = max(at_us, pc.max(changes["_at"].cast(pa.int64())).as_py())
                rest(throttle)
        names = [name for name, _ in made]
        counts = [upserted, deleted, version, at_us]
        return dict(zip(HISTORIES.names, [*names, *counts, unwritten], strict=True))

    def _changes(
        self, form: HistoryForm, records: pa.RecordBatch, unwritten: list[int], throttle: Throttle
    ) -> tuple[pa.Table, Integers]:
        """Decodes the changes of keys; returns them in order, with their keys as numbers."""
        coded = records.column("key").dictionary_encode()
        codes = integers(coded.indices)
        parts, numbers = [form.changes_schema.empty_table()], [np.empty(0, np.int64)]
        failed = list[int]()
        for topic, start, piece in self._pieces(records):
            own = np.arange(start, start + piece.num_rows)
            for table, of in self._decoded(form, topic, piece, own, failed):
                parts.append(table)
                numbers.append(of)
            rest(throttle)
        table, record_numbers = pa.concat_tables(parts), np.concatenate(numbers)
        fails = np.zeros(len(coded.dictionary), np.bool_)
        fails[codes[failed]] = True
        if failed:
            unwritten += integers(records.column(ROW))[fails[codes]].tolist()
            whole = ~fails[codes[record_numbers]]
            table, record_numbers = table.filter(pa.array(whole)), record_numbers[whole]
        order = np.argsort(record_numbers, kind="stable")  # as in the topic
        order = order[
            known_changes(
                codes[record_numbers[order]],
                _column(table, VERSION_COLUMN)[order],
                _column(table, "_at")[order],
            )
        ]
        return table.take(pa.array(order)), codes[record_numbers[order]]

    def _pieces(self, records: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
        """Yields records that are decoded together, with their topic and the first number."""
        of_topic = integers(records.column(TOPIC))  # rising
        for number, topic in enumerate(self.topics):
            begin, end = np.searchsorted(of_topic, (number, number + 1)).tolist()
            for start in range(begin, end, _DECODED_ROWS):
                yield topic, start, records.slice(start, min(_DECODED_ROWS, end - start))

    def _decoded(
        self,
        form: HistoryForm,
        topic: str,
        piece: pa.RecordBatch,
        record_numbers: Integers,
        failed: list[int],
    ) -> Iterator[tuple[pa.Table, Integers]]:
        """Decodes records by columns if that is exact, and all others by the reducer."""
        exact = np.zeros(piece.num_rows, np.bool_)
        columnar = ColumnarDecoder.of(self.plan, topic, self.held)
        if columnar is not None:
            upserts, deletes, exact = columnar.decode(piece)
            gone = exact & flags(pc.equal(piece.column("op"), "d"))
            if form.sequence_by in upserts.column_names:
                timed = flags(upserts[form.sequence_by].combine_chunks().is_valid())
                upserts = upserts.filter(pa.array(timed))
                exact[np.flatnonzero(exact & ~gone)[~timed]] = False  # the reducer says why
            for chosen, table in ((exact & ~gone, upserts), (gone, deletes)):
                yield (
                    self._table(form, piece.filter(pa.array(chosen)), table),
                    record_numbers[chosen],
                )
        rest, own = piece.filter(pa.array(~exact)), record_numbers[~exact]
        reader = PlainChanges(self.plan, topic, self.held, planned_keys=True)
        for start in range(0, rest.num_rows, _REDUCED_ROWS):
            few = rest.slice(start, _REDUCED_ROWS)
            numbers = own[start : start + few.num_rows]
            yield from reader.taken(
                few, numbers, failed, lambda changes: self._reduced(form, changes)
            )

    def _table(self, form: HistoryForm, batch: pa.RecordBatch, rows: pa.Table) -> pa.Table:
        """Returns rows, or the keys of deletes, that were decoded by columns as changes."""
        op, versions = batch.column("op"), rows[VERSION_COLUMN].to_pylist()
        live = flags(pc.not_equal(op, "d"))
        unknown = np.fromiter(map(read, versions), np.bool_, len(versions))
        unknown = np.where(live, flags(pc.equal(op, "r")), unknown)  # see `IncomingChange.made`
        blank = {field.name: pa.nulls(len(rows), field.type) for field in form.changes_schema}
        made = blank | {name: rows[name] for name in rows.column_names}
        made |= {
            "_at": batch.column("committed_at"),
            LIVE: pa.array(live),
            COMMIT: pa.repeat(pa.scalar(self.commit, pa.int64()), len(rows)),
            INSERTED: pa.array(flags(pc.equal(op, "c")), mask=unknown),
        }
        by = form.sequence_by
        if by is not None and by in rows.column_names:
            own_us = _column(rows, by)
            made["_sequence"] = pa.array(own_us, mask=~live).cast(_INSTANT)
        arrays = [made[field.name] for field in form.changes_schema]
        return pa.Table.from_arrays(arrays, schema=form.changes_schema)

    def _reduced(self, form: HistoryForm, changes: list[RowChange]) -> pa.Table:
        """Returns changes that the reducer made as rows.

        Raises:
            UnholdableValueError: A value has no exact form in a table, or a row has no time.
        """
        keys = form.table_keys([change.key for change in changes])
        made = []
        for change, key in zip(changes, keys, strict=True):
            at_us = change.committed_at_us or change.read_at_us
            incoming = IncomingChange(change, key, None, at_us, None).timed(form)
            made.append((key, incoming.made(change.version, change.row)))
        return form.changes_table(made, self.commit)


def _states(form: HistoryForm, changes: pa.Table, keys: Integers) -> pa.Table:
    """Returns all states of some keys; see `states_of`."""
    if not form.rule.by_sequence:
        return states_of(form, changes, keys)
    # a row's own time may place it before others, so they are taken one by one, as in live delivery
    states: list[tuple[TableKey, HistoryState]] = []
    for _, own in groupby(zip(keys.tolist(), form.changes(changes), strict=True), itemgetter(0)):
        keys_of_changes, own_changes = zip(*(change for _, change in own), strict=True)
        states += [(keys_of_changes[0], state) for state in history(own_changes, form.rule)]
    return form.states_table(states)


def _column(table: pa.Table, name: str) -> Integers:
    return integers(table[name].cast(pa.int64()).combine_chunks())
