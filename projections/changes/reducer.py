"""Parses the records of one change topic in bulk, and reduces them to one change of each key.

`ChangeEvent.parse` defines the meaning of a record. This module computes the same several times as
fast, because it parses only what a mirror needs, and decodes only the last change of each key in
the batch. It passes unknown forms to `ChangeEvent.parse`, whose error names the fault. A record
that cannot be read is quarantined with its cause; all others are applied.
"""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import orjson
from msgspec.structs import replace

from cdc.change_event import ChangeEvent
from cdc.envelope import Operation
from cdc.errors import CdcError, EnvelopeError, SchemaMismatchError
from cdc.position import VERSION_LSN_BITS, epoch_of, lsn_of
from cdc.values import UNCHANGED_MARKS, UNCHANGED_PLACEHOLDER, decode, decoder, rows_decoder
from projections.changes.raw_change import RawChange, filled, newer_after, newer_before
from projections.changes.record import Record, RecordFailure, canonical, stated_epoch
from projections.changes.reduced import (
    SET_APART,
    RecordHeader,
    Reduced,
    missing_values,
    unread_record,
)
from projections.changes.row_change import RowChange
from projections.errors import (
    KeylessChangeError,
    ProjectionError,
    TruncateError,
    UnknownShapeError,
)
from projections.planning.row_upcaster import Fitting

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from cdc.table import TableSchema
    from foundation.errors import PlatformError
    from projections.planning.row_upcaster import TableShapes
    from projections.planning.view_plan import Facts


class _Truncated(Exception):  # noqa: N818  # no error: signals a record without a row
    def __init__(self, version: int, at_us: int) -> None:
        self.version = version
        self.at_us = at_us


class _Begun(NamedTuple):
    version: int
    at_us: int
    record: Any


class TopicReducer:
    """Keeps the newest change of every key of one table; one per table, task and batch.

    Args:
        schema: The table as its catalog describes it, with the columns that are read.
        facts: For a table of events, which of its records count; None if all do.
        shapes: The table's recorded shapes: records of an earlier shape are converted, and a record
            that fits no shape is quarantined. Without shapes, such a record stops the batch.
        left_out: Names of further columns of the table, whose values are ignored.
        left_to_read: Records of older versions do not count, because a snapshot of the table
            follows.
        begun: Whether views show when rows were inserted; then inserts and deletes of their keys
            are returned too, even if they do not count otherwise.
    """

    _every: ClassVar = False

    def __init__(  # noqa: PLR0913  # options of a topic, most of them rare
        self,
        schema: TableSchema,
        facts: Facts | None = None,
        *,
        shapes: TableShapes | None = None,
        left_out: frozenset[str] = frozenset(),
        left_to_read: int = 0,
        begun: bool = False,
    ) -> None:
        self._schema = schema
        self._facts = facts
        self._kind: str | None = None
        self._fitting = None if shapes is None else Fitting(schema, shapes)
        self._settled_lsn = 0 if self._fitting is None else self._fitting.settled_lsn
        self._left_to_read = left_to_read
        self._asks_begun = begun
        waits = (SchemaMismatchError, UnknownShapeError)
        self._set_apart = SET_APART if shapes is None else (*SET_APART, *waits)
        self._columns = frozenset(schema.by_name)
        self._left_out = left_out
        self._captured = self._columns | left_out
        self._without_key = not schema.key
        self._decode_row = decoder(schema)
        self._decode_rows = rows_decoder(schema)
        self._clear()

    def _clear(self) -> None:
        self._newest: dict[bytes | str, RawChange] = {}
        self._passed: list[RawChange] = []
        self._cuts: set[bytes] = set()
        self._failures: list[RecordFailure] = []
        self._kinds: Counter[str | None] = Counter()
        self._truncated = 0
        self._begun: dict[Any, _Begun] = {}  # by key
        self.records = 0
        self._accepted = 0
        self._filtered = 0

    def __len__(self) -> int:
        return len(self._newest)

    # one loop: a call for each record would cost as much as reading it
    def add(self, records: Iterable[Record | tuple[Any, ...]]) -> None:  # noqa: C901
        """Adds records in the order of their topic; tombstones are skipped.

        Raises:
            SchemaMismatchError: A record lacks a column of the table, or has an additional one.
        """
        newest, passed = self._newest, self._passed if self._every else None
        for record in records:
            key, value, epoch, _, _, _, _ = record
            self.records += 1
            if value is None:
                self._filtered += 1
                continue
            if self._without_key or key == b"null":
                # the connector takes any unique index for a key, nullable ones too
                key = None
            try:
                read = self._read(record, key, value, stated_epoch(epoch))
            except _Truncated as found:
                self._accepted += 1
                self._truncate(found.version, found.at_us, record)
                continue
            except self._set_apart as error:
                self._failures.append(unread_record(record, error))
                self._cut(key)
                continue
            if read is None:
                self._filtered += 1
                continue
            raw, order = read
            self._accepted += 1
            if self._facts is not None and raw.row is not None:
                self._kinds[self._kind] += 1
            # the connector writes equal keys in equal bytes
            identity = row_id(raw.version, order) if key is None else key
            seen = newest.get(identity)
            if passed is not None and seen is not None:
                passed.append(seen if raw.version > seen.version else raw)
            if seen is None:
                newest[identity] = raw
            elif raw.version > seen.version:
                newest[identity] = (
                    raw if raw.row and not raw.unchanged_columns else self._after(seen, raw)
                )
            elif seen.unchanged_columns and raw.version < seen.version:
                newest[identity] = self._before(raw, seen)

    def _after(self, older: RawChange, newer: RawChange) -> RawChange:
        """See `newer_after`."""
        return newer_after(older, newer)

    def _before(self, older: RawChange, newer: RawChange) -> RawChange:
        """See `newer_before`."""
        return newer_before(older, newer)

    def pass_over(self, record: Record) -> None:
        """Records that an unreadable record of a key is at this position."""
        if record.key is not None:
            self._cut(record.key)

    def reading(self, record: Record) -> RecordHeader:
        """Returns the position data of a record.

        Raises:
            CdcError: It cannot be read.
            ProjectionError: It cannot be read.
        """
        key = None if self._without_key or record.key == b"null" else record.key
        read = None
        if record.value is not None:
            read = self._read(record, key, record.value, stated_epoch(record.epoch))
        if read is None and record.value is not None and self._fitting is not None:
            return RecordHeader(
                0, streamed=False, whole=False
            )  # a snapshot of the table replaces it
        if read is None:
            raise EnvelopeError("the record is not a change of a row")
        raw = read[0]
        streamed, lsn = bool(raw.committed_at_us), lsn_of(raw.version)
        values = None if raw.key is None else self._key(raw.key)
        return RecordHeader(lsn, streamed, not raw.unchanged_columns, raw.version, values)

    def reduced(self) -> Reduced:
        """Decodes and returns the changes, and clears them."""
        changes: list[RowChange] = []
        below: list[RowChange] = []
        raws: list[RawChange] = []
        key_names = self._schema.key
        items = self._items()
        for (identity, raw), row in zip(items, self._rows(items), strict=False):
            begun = self._begun.pop(identity, None) if self._begun else None
            if begun is not None and begun.record is not raw.record:
                raw = replace(raw, begun=begun.record)  # noqa: PLW2901  # it has both records
            try:
                if row is None or raw.unchanged_columns or raw.key is None:
                    change = self._change(identity, raw, row)
                else:  # nearly all
                    key = tuple([row[name] for name in key_names])
                    change = RowChange(key, raw.version, row, raw.committed_at_us)
                if raw.below is not None:
                    below.append(self._change(identity, raw.below))
            except self._set_apart as error:
                self._failures.append(self._undecoded(raw, error, begun))
                continue
            if begun is not None:
                change = replace(change, begun=begun.version, begun_at_us=begun.at_us)
            changes.append(change)
            raws.append(raw)
        result = Reduced(
            changes,
            below,
            self._failures,
            self.records,
            self._accepted,
            self._filtered,
            self._kinds,
            self._truncated,
            raws,
            list(self._only_begun()),
        )
        self._clear()
        return result

    def _only_begun(self) -> Iterator[RowChange]:
        """Yields the inserts and deletes of keys without any other change."""
        for key, begun in self._begun.items():
            try:
                values = self._key(key)
            except self._set_apart:
                continue  # no row of the present table can have this key
            yield RowChange(values, 0, None, 0, begun=begun.version, begun_at_us=begun.at_us)

    def _note_begun(
        self, record: Any, operation: str, version: int, key: bytes | None, at_us: int
    ) -> None:
        """Records an insert or a delete; the newest of a key determines when its row began."""
        if key is None or operation not in ("c", "d") or version < self._truncated:
            return
        seen = self._begun.get(key)
        if seen is None or seen.version < version:
            self._begun[key] = _Begun(version, at_us if operation == "c" else 0, record)

    def _items(self) -> Collection[tuple[bytes | str, RawChange]]:
        """Returns the changes by the identity of their rows."""
        return self._newest.items()

    def _rows(
        self, items: Collection[tuple[bytes | str, RawChange]]
    ) -> Iterator[dict[str, object] | None]:
        """Yields the decoded rows of changes, in order.

        A delete has None. If a value does not fit its column, all rows are None: the caller then
        decodes each row separately.
        """
        try:
            rows = self._decode_rows([raw.row for _, raw in items if raw.row is not None])
        except CdcError:
            return repeat(None)
        if len(rows) == len(items):
            return iter(rows)
        upserts = iter(rows)
        return (None if raw.row is None else next(upserts) for _, raw in items)

    def _change(
        self, identity: bytes | str, raw: RawChange, row: dict[str, object] | None = None
    ) -> RowChange:
        if row is None and raw.row is not None:
            row = self._decode_row(raw.row)
        base = None
        if row is not None and raw.unchanged_columns:
            if raw.lost:
                raise missing_values(self._schema, raw.unchanged_columns)
            row |= dict.fromkeys(raw.unchanged_columns)
            base = None if raw.base is None else self._key(raw.base)
        if raw.key is None:
            key: tuple[object, ...] = (identity,)
        elif row is not None:
            key = tuple([row[name] for name in self._schema.key])
        else:
            key = self._key(raw.key)
        return RowChange(
            key, raw.version, row, raw.committed_at_us, raw.unchanged_columns, base, raw.moved_at
        )

    # each early return saves a step for each record
    def _read(  # noqa: PLR0911
        self, record: Any, key: bytes | None, value: bytes, epoch: int
    ) -> tuple[RawChange, int] | None:
        try:
            fields = orjson.loads(value)
            operation, source = fields["op"], fields["source"]
            if self._facts is not None:
                self._kind = None
                self._kind = _kind(operation, fields)
                if self._facts.skips(operation, self._kind):
                    return None
            lsn = int(orjson.loads(source["sequence"])[1])
            if lsn >> VERSION_LSN_BITS:
                return self._read_slowly(record, key, value, epoch)
            version = epoch << VERSION_LSN_BITS | lsn
            if self._asks_begun and operation in ("c", "d"):
                self._note_begun(record, operation, version, key, source["ts_us"])
            if version < self._left_to_read:
                return None
            order = fields["transaction"]["total_order"]
            committed_at_us = 0 if operation == "r" else source["ts_us"]
            after = fields["after"]
        except (KeyError, TypeError, ValueError, IndexError):
            return self._read_slowly(record, key, value, epoch)
        if operation == "d":
            if key is None:
                raise self._without(operation, version)
            return RawChange(version, None, key, committed_at_us, (), record), order
        if operation not in ("c", "u", "r") or after is None:
            return self._read_slowly(record, key, value, epoch)
        raw = RawChange(version, after, key, committed_at_us, (), record)
        upsert = self._upsert(raw, value, operation)
        return None if upsert is None else (upsert, order)

    def _upsert(self, raw: RawChange, value: bytes, operation: str) -> RawChange | None:
        if raw.key is None and (operation == "u" or not self._without_key):
            raise self._without(operation, raw.version)
        after = raw.row or {}
        unsettled = self._settled_lsn and lsn_of(raw.version) < self._settled_lsn
        if unsettled or self._left_out or after.keys() != self._columns:
            fitting = unsettled or after.keys() != self._captured
            fitted = self._fitted(raw, after, operation) if fitting else self._read_of(after)
            if fitted is None:
                return None
            raw, after = replace(raw, row=fitted), fitted
        for mark in UNCHANGED_MARKS:
            if mark in value:
                return self._keeping(raw, after, operation)
        return raw

    def _keeping(self, raw: RawChange, after: Mapping[str, Any], operation: str) -> RawChange:
        unchanged = tuple(name for name, field in after.items() if field == UNCHANGED_PLACEHOLDER)
        raw = replace(raw, unchanged_columns=unchanged)
        if unchanged and operation == "c":
            return self._moved(raw)
        if unchanged and raw.key in self._cuts and raw.key not in self._newest:
            return replace(raw, lost=True)  # the store's row is older than the unreadable record
        return raw

    def _fitted(
        self, raw: RawChange, row: Mapping[str, Any], operation: str
    ) -> Mapping[str, Any] | None:
        """Converts a row of another shape to the plan's columns; None if a snapshot replaces it."""
        if self._fitting is None:
            fitted = self._read_of(row)
            self._decode_row(fitted)  # raises, and names the columns
            return fitted
        try:
            return self._fitting.fit(row, lsn_of(raw.version), read=operation == "r")
        except LookupError:
            lacking = self._columns - row.keys()
            strange = row.keys() - self._captured
            raise UnknownShapeError(
                f"a record of {self._schema.table} has columns that its views do not have",
                detail=f"new: {', '.join(sorted(strange)) or 'none'}; "
                f"gone: {', '.join(sorted(lacking)) or 'none'}",
                hint="headwater source changes lists the recorded changes; headwater view "
                "resume gives a view the present columns of its table",
            ) from None

    def _read_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in self._left_out}

    def _moved(self, raw: RawChange) -> RawChange:
        """Handles a row whose key changed: its unchanged values are in the row of its old key.

        The delete of the old key must be the record right before it. If it is not, the topic has
        several partitions, and it is unknown which changes of the old row have been read.
        """
        old_key = canonical(raw.record[5])
        deleted = None if old_key is None else self._newest.get(old_key)
        if (
            deleted is None
            or deleted.row is not None
            or deleted.version != raw.version
            or deleted.record[3] != raw.record[3]
        ):
            return replace(raw, lost=True)
        if deleted.gone is None:
            lost = deleted.key in self._cuts
            return replace(raw, base=deleted.key, moved_at=raw.version, lost=lost)
        return filled(deleted.gone, raw, moved_from=deleted.key)

    def _read_slowly(
        self, record: Any, key: bytes | None, value: bytes, epoch: int
    ) -> tuple[RawChange, int] | None:
        event = ChangeEvent.parse(key, value, epoch)
        version, order = event.position.version, event.position.order
        if event.operation is Operation.TRUNCATE:
            if self._facts is None:
                raise _Truncated(version, event.committed_at_us)
            raise TruncateError(
                f"table {self._schema.table} was truncated",
                hint=(
                    "a view of events does not follow a TRUNCATE: drop the record to keep its rows"
                ),
            )
        committed_at_us = 0 if event.snapshot else event.committed_at_us
        if self._asks_begun:
            self._note_begun(record, event.operation, version, key, committed_at_us)
        if version < self._left_to_read:
            return None
        raw = RawChange(version, event.after, key, committed_at_us, (), record)
        if event.operation is Operation.DELETE:
            if key is None:
                raise self._without(event.operation, version)
            return replace(raw, row=None), order
        if event.operation is Operation.MESSAGE or event.after is None:
            raise EnvelopeError("record has no row", detail=f"operation {event.operation}")
        upsert = self._upsert(raw, value, event.operation)
        return None if upsert is None else (upsert, order)

    def _cut(self, key: bytes | None) -> None:
        """Records that a later, unreadable record may have changed a key's row."""
        if key is None:
            return
        self._cuts.add(key)
        if seen := self._newest.get(key):
            self._newest[key] = replace(seen, cut=True)

    def _truncate(self, version: int, at_us: int, record: Any) -> None:  # noqa: ARG002
        self._truncated = max(self._truncated, version)
        for name in [name for name, raw in self._newest.items() if raw.version < version]:
            del self._newest[name]
        for key in [key for key, begun in self._begun.items() if begun.version < version]:
            del self._begun[key]

    def _undecoded(
        self, raw: RawChange, error: PlatformError, begun: _Begun | None = None
    ) -> RecordFailure:
        try:
            key = None if raw.key is None else self._key(raw.key)
        except (CdcError, ProjectionError):
            key = None
        kind = raw.row.get("type") if raw.row is not None and self._facts is not None else None
        first = () if begun is None else (begun.version, begun.at_us)
        return RecordFailure(raw.records, error, raw.version, key, kind, *first)

    def _key(self, key: bytes) -> tuple[object, ...]:
        by_name = self._schema.by_name
        try:
            fields = orjson.loads(key)
            return tuple([decode(by_name[name], fields[name]) for name in self._schema.key])
        except (KeyError, TypeError, orjson.JSONDecodeError):
            raise SchemaMismatchError(
                f"a record's key is not the key of {self._schema.table}",
                detail=f"planned {', '.join(self._schema.key)}",
            ) from None

    def _without(self, operation: str, version: int) -> EnvelopeError | KeylessChangeError:
        if not self._without_key:
            return EnvelopeError("record lacks its key", detail=f"operation {operation}")
        return KeylessChangeError(
            f"a row of {self._schema.table}, which has no key, was changed",
            detail=f"operation {operation}",
            hint="headwater source resnapshot reads the table again as a whole; with a primary key"
            " its views follow such changes",
            version=version,
        )


def _kind(operation: str, fields: Mapping[str, Any]) -> str | None:
    row = fields["before" if operation == "d" else "after"]
    return row.get("type") if isinstance(row, dict) else None


def row_id(version: int, order: int) -> str:
    """Returns the identity of a row without a key: its log position and number there."""
    # fixed width, so that text order is log order and files of old rows can be skipped
    return f"{epoch_of(version):03d}-{lsn_of(version):016x}-{order:08x}"
