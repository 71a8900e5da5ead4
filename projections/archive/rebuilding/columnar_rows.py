"""Columnar decoding: records decoded a column at a time, where that is exact.

The rows of many records are parsed together. The text of each row is then written again from its
values, and compared with the record: if the bytes are equal, the row has exactly the table's
columns, in their canonical form. Every other record is left to `projections.changes.reducer`,
which decodes any record, with the same result, in four times as long.
"""

from __future__ import annotations

import base64
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cdc.position import VERSION_LSN_BITS
from cdc.table import ColumnKind, TableSchema
from projections.archive.survey import flags, integers, versions_of
from projections.changes.reducer import row_id
from projections.definition.views import ARCHIVED_EVENTS, ChangeTime
from projections.planning.key_forms import printed_form
from projections.planning.row_upcaster import Fitting
from projections.stores.delta.arrow import arrow_type, decoded_rows, deletes_schema, table_schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdc.table import Column
    from projections.archive.fold import Flags
    from projections.changes.task_outcome import BlockedKeys
    from projections.planning.view_plan import ViewPlan

_JSON_TYPES: Final = {ColumnKind.BOOLEAN: pa.bool_(), ColumnKind.INTEGER: pa.int64()}
_TEXT: Final = pa.large_string()
_EMPTY: Final = pa.scalar("", _TEXT)
_YEAR: Final = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_DAY: Final = rf"{_YEAR}-\d{{2}}-\d{{2}}"
_MOMENT: Final = rf"{_DAY}[T ]\d{{2}}:\d{{2}}:\d{{2}}(?:\.\d{{1,6}})?"
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
_PLAIN: Final = {
    ColumnKind.NUMERIC: r"^-?(?:0|[1-9]\d*)(?:\.\d+)?$",
    ColumnKind.FLOAT: r"^-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?$",
    ColumnKind.DATE: rf"^{_DAY}$",
    ColumnKind.TIME: rf"^{_CLOCK}(?:\.\d{{6}})?$",
    ColumnKind.TIMESTAMP: rf"^{_MOMENT}$",
    ColumnKind.TIMESTAMPTZ: rf"^{_MOMENT}(?:Z|\+00(?::00)?)$",
}
"""Forms of values that Arrow reads as `cdc.values` does; others are left to that."""

_ESCAPED: Final = (
    ("\\", "\\\\"),
    ('"', '\\"'),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\b", "\\b"),
    ("\f", "\\f"),
)
"""What JSON writes otherwise than it is; the escapes themselves come first."""

_TO_ESCAPE: Final = r'[\\"\x00-\x1f]'
_UNLIKE: Final = (ValueError, TypeError, KeyError, OverflowError)
"""What is raised, by Arrow as well, where a value of any record is of another kind or form."""

_UPSERTS: Final = pa.array(["c", "u", "r"])
_ADDS: Final = pa.array(["c", "r"])
"""What adds a row to a table without a key; no other change of one can be followed."""


class ColumnarDecoder:
    """Decodes records of one view; see `decode`.

    Args:
        plan: The view; not one of events.
        topic: The topic.
    """

    def __init__(self, plan: ViewPlan, topic: str) -> None:
        self._plan = plan
        shapes = plan.shapes.get(topic)
        self._settled_lsn = 0 if shapes is None else Fitting(plan.schema, shapes).settled_lsn
        unread = [column for column in plan.left_out if column.name in plan.unread]
        self._captured = {column.name: column for column in (*plan.schema.columns, *unread)}
        self._whole = len(unread) == len(plan.unread)
        self._key = [plan.schema.by_name[name] for name in plan.schema.key]
        self._inspection = plan.inspection() if plan.expectations else None
        named = frozenset() if self._inspection is None else self._inspection.named
        inspected = tuple(column for column in plan.schema.columns if column.name in named)
        self._inspected = replace(plan, schema=TableSchema(plan.schema.table, inspected, ()))

    @classmethod
    def of(
        cls, plan: ViewPlan, topic: str, held: Mapping[str, BlockedKeys] | None = None
    ) -> ColumnarDecoder | None:
        """Returns the decoder of a view; None if every record needs the reducer.

        Args:
            plan: The view.
            topic: The topic.
            held: Quarantined keys, by view.
        """
        own = (held or {}).get(plan.name)
        if own is not None and (own.keys or own.given_up):
            return None
        if topic.endswith(str(ARCHIVED_EVENTS)):
            return None  # such a record has the time of its archiving, not that of its event
        decoder = cls(plan, topic)
        return decoder if decoder._whole else None

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.Table, pa.Table, Flags]:
        """Decodes records; rows that do not meet an expectation count as not exact.

        Args:
            batch: Records, in any order.

        Returns:
            Rows, deletes, and which of the records were decoded.
        """
        decoded = np.zeros(batch.num_rows, np.bool_)
        usable = flags(
            pc.and_(
                batch.column("raw_value").is_null(),
                pc.and_(batch.column("epoch").is_valid(), batch.column("committed_at").is_valid()),
            )
        )
        usable &= integers(batch.column("lsn")) >= self._settled_lsn
        usable &= integers(batch.column("lsn")) < 1 << VERSION_LSN_BITS
        keyless = self._plan.append_only
        upserts = flags(pc.is_in(batch.column("op"), value_set=_ADDS if keyless else _UPSERTS))
        upserts &= flags(batch.column("after").is_valid())
        deletes = flags(pc.equal(batch.column("op"), "d")) & (not keyless)
        made = []
        for chosen, decode, schema in (
            (usable & upserts, self._rows, table_schema(self._plan)),
            (usable & deletes, self._deletes, deletes_schema(self._plan)),
        ):
            part = batch.filter(pa.array(chosen))
            arrays, exact = decode(part) if part.num_rows else (None, None)
            if arrays is None or exact is None:
                made.append(schema.empty_table())
                continue
            table = pa.Table.from_arrays(arrays, schema=schema)
            made.append(table if exact.all() else table.filter(pa.array(exact)))
            decoded[np.flatnonzero(chosen)[exact]] = True
        if self._inspection is not None and len(made[0]):
            verdicts = map(self._inspection.met, decoded_rows(self._inspected, made[0]))
            met = np.fromiter(verdicts, np.bool_, len(made[0]))
            decoded[np.flatnonzero(decoded & upserts)[~met]] = False
            made[0] = made[0].filter(pa.array(met))
        return made[0], made[1], decoded

    def _rows(self, batch: pa.RecordBatch) -> tuple[list[pa.Array] | None, Flags | None]:
        """Returns the table's columns, and which rows are exact; None if no row is known to be."""
        after = batch.column("after").cast(_TEXT)
        columns = self._order(after[0].as_py())
        try:
            parsed = None if columns is None else _parsed(after, columns)
            if columns is None or parsed is None:
                return None, None
            exact = flags(pc.equal(_written(parsed, columns), after))
            if not self._plan.append_only:
                exact &= self._same_keys(parsed, batch)
            arrays = [
                _typed(column, parsed[column.name], exact) for column in self._plan.schema.columns
            ]
        except _UNLIKE:
            return None, None  # the reducer tells of which
        if self._plan.append_only:
            arrays.append(row_ids(batch))
        arrays += [self._time(which, batch) for _, which in self._plan.times]
        return [*arrays, pa.array(versions_of(batch))], exact

    def _deletes(self, batch: pa.RecordBatch) -> tuple[list[pa.Array] | None, Flags | None]:
        keys = batch.column("key").cast(_TEXT)
        try:
            parsed = _parsed(keys, self._key)
            if parsed is None:
                return None, None
            exact = self._same_keys(parsed, batch)
            arrays = [_typed(column, parsed[column.name], exact) for column in self._key]
        except _UNLIKE:
            return None, None
        return [*arrays, pa.array(versions_of(batch))], exact

    def _order(self, text: str) -> list[Column] | None:
        """The columns in the order in which records have them; None if they are others."""
        try:
            names = orjson.loads(text)
        except ValueError:
            return None
        if not isinstance(names, dict) or names.keys() != self._captured.keys():
            return None
        return [self._captured[name] for name in names]

    def _same_keys(self, parsed: Mapping[str, pa.Array], batch: pa.RecordBatch) -> Flags:
        """Whether keys are written in the one form that the connector has for them."""
        written = _written(parsed, self._key)
        exact = flags(pc.equal(written, batch.column("key").cast(_TEXT)))
        for column in self._key:
            values, form = parsed[column.name], printed_form(column)
            in_form = values.is_valid()
            if form is not None:
                in_form = pc.match_substring_regex(values, f"^{form}$")
            exact &= flags(in_form)
        return exact

    @staticmethod
    def _time(which: ChangeTime, batch: pa.RecordBatch) -> pa.Array:
        instant = pa.timestamp("us", "UTC")
        if which is ChangeTime.PROCESSING:
            now_us = time.time_ns() // 1000
            return pa.repeat(pa.scalar(now_us, pa.int64()), batch.num_rows).cast(instant)
        name = "recorded_at" if which is ChangeTime.BROKER else "committed_at"
        at_us = integers(batch.column(name).cast(pa.int64()))
        unknown = at_us == 0
        if which is not ChangeTime.BROKER:  # no one knows when a row was committed that was read
            unknown |= flags(pc.equal(batch.column("op"), "r"))
        return pa.array(at_us, pa.int64(), mask=unknown).cast(instant)


def row_ids(records: pa.RecordBatch) -> pa.Array:
    """Returns the identities of the rows of records of a table without a key; see `row_id`."""
    orders = integers(records.column("total_order")).tolist()
    return pa.array(map(row_id, versions_of(records).tolist(), orders), pa.string())


def _parsed(texts: pa.Array, columns: Sequence[Column]) -> dict[str, pa.Array] | None:
    """Parses JSON objects; None unless there is one for each text.

    Raises:
        ValueError: One is no such object; see `_UNLIKE` for the others.
    """
    # Arrow's own reader of JSON is faster, and ends the process at some texts that are no object
    rows = orjson.loads(b"[%b]" % ",".join(texts.to_pylist()).encode())
    if len(rows) != len(texts):
        return None
    return {
        column.name: pa.array(
            [row[column.name] for row in rows], _JSON_TYPES.get(column.kind, pa.string())
        )
        for column in columns
    }


def _written(parsed: Mapping[str, pa.Array], columns: Sequence[Column]) -> pa.Array:
    """Writes objects as the connector does."""
    parts: list[pa.Array | pa.Scalar] = []
    before = "{"
    for column in columns:
        values = parsed[column.name]
        quoted = column.kind not in _JSON_TYPES
        text = _escaped(values) if quoted else values.cast(pa.string())
        if quoted:
            text = pc.binary_join_element_wise('"', text, '"', "")
        parts += [f"{before}{json.dumps(column.name, ensure_ascii=False)}:", text.fill_null("null")]
        before = ","
    parts = [part.cast(_TEXT) if isinstance(part, pa.Array) else part for part in parts]
    large = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*large, pa.scalar("}", _TEXT), _EMPTY)


def _escaped(values: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(values, _TO_ESCAPE)).as_py():
        for char, escape in _ESCAPED:
            values = pc.replace_substring(values, char, escape)
    return values


def _typed(column: Column, values: pa.Array, exact: Flags) -> pa.Array:
    """Values in the type of the table's column; `exact` becomes false where that is not known.

    Raises:
        ValueError: A value has no such form; see `_UNLIKE` for the others.
    """
    kind = column.kind
    if kind is ColumnKind.BYTES:
        raw = values.to_pylist()
        return pa.array(
            [each if each is None else base64.b64decode(each, validate=True) for each in raw],
            arrow_type(column),
        )
    if kind in _PLAIN:
        plain = pc.or_(pc.match_substring_regex(values, _PLAIN[kind]), values.is_null())
        plain = pc.fill_null(plain, True)
        if not pc.all(plain).as_py():
            exact &= flags(plain)
            values = pc.if_else(plain, values, pa.scalar(None, values.type))
    if kind is ColumnKind.TIME:
        short = pc.equal(pc.utf8_length(values), len("00:00:00"))
        values = pc.if_else(
            pc.fill_null(short, False),
            pc.binary_join_element_wise(values, ".000000", ""),
            values,
        )
    return values.cast(arrow_type(column))
