"""Upcasts rows of any age to the columns of a view.

A record has the columns that its table had when the row was written, and the table's history has
these. Columns are matched by number, so a renamed column keeps its values, a new one gets the value
that Postgres gives to old rows, and a dropped one is left out. Values that only Postgres knows come
with the read that such a change requests; unknown columns are refused.

A history stores former rows, not only the present ones. An older row is complete for that purpose:
it has the values of a column under its former type, and lacks columns that were added later.

Values of a column under a former type, converted to the present type.

When the type of a column changes, Postgres computes the values of its rows by an arbitrary
expression. The former value of a row is the one in the log; a history keeps it if the new type
represents it exactly, by its text in Postgres, and has NULL otherwise.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import CdcError
from cdc.schema_change.difference import ChangeKind, differences
from cdc.table import ColumnKind
from cdc.values import UNCHANGED_PLACEHOLDER, decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdc.schema_change.shape import ShapeVersion, TableHistory, TableShape
    from cdc.table import Column, TableSchema


@dataclass(frozen=True, slots=True)
class TableShapes:
    """How the columns of a plan follow from earlier columns of its table.

    Attributes:
        history: The schema history of the table.
        numbers: Column number of each of the plan's columns, by its name in the view.
        until: Number of the newest change that was decided on: later ones, not allowed for, are not
            upcast. None allows all.
        left_out: Names of other columns of its table.
        past: Whether rows represent former states, as in a history.
    """

    history: TableHistory
    numbers: Mapping[str, int]
    until: int | None = None
    left_out: frozenset[str] = frozenset()
    past: bool = False

    @property
    def upcast_count(self) -> int:
        """Returns the number of versions, from the oldest, whose rows are upcast."""
        versions = self.history.versions
        if self.until is None:
            return len(versions)
        known = [index for index, version in enumerate(versions) if version.id <= self.until]
        last = known[-1] if known else 0
        shape = versions[last].shape
        for index in range(last + 1, len(versions)):
            later = versions[index].shape
            if shape is None or later is None or _captured(later) != _captured(shape):
                return index
        return len(versions)

    @property
    def complete(self) -> bool:
        """Returns whether rows of every version are upcast."""
        return self.upcast_count == len(self.history.versions)

    @property
    def older_names(self) -> dict[str, tuple[str, ...]]:
        """Returns former names of the plan's columns, the newest first."""
        shapes = [version.shape for version in reversed(self.history.versions) if version.shape]
        return {
            name: tuple(
                dict.fromkeys(
                    column.name
                    for shape in shapes
                    for column in shape.columns
                    if column.number == number and column.name != name
                )
            )
            for name, number in self.numbers.items()
        }

    @property
    def settled_lsn(self) -> int:
        """Returns the position before which the plan's column names may have other meanings."""
        versions = self.history.versions
        captured = self.numbers.keys() | self.left_out
        settled = 0
        for index, version in enumerate(versions):
            if version.shape is None or version.shape.names != captured:
                continue
            columns = (c for c in version.shape.columns if c.name in self.numbers)
            numbers = {column.name: column.number for column in columns}
            unlike = numbers != self.numbers or index >= self.upcast_count
            if unlike or _filled_since(versions[index : self.upcast_count]):
                last = index + 1 == len(versions)
                settled = _NEVER if last else versions[index + 1].lsn.value
        return settled


_NEVER: Final = 1 << 64


def _captured(shape: TableShape) -> list[tuple[int, str, tuple[int, int]]]:
    return [(column.number, column.name, column.type_id) for column in shape.columns]


@dataclass(frozen=True, slots=True)
class _Mapping:
    """Converts rows with one schema to rows of the plan."""

    carried: tuple[tuple[str, str], ...]
    constant: Mapping[str, Any]
    retyped: tuple[tuple[str, str, str, Column], ...] = ()

    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: row[old] for name, old in self.carried} | dict(self.constant)
        for name, old, type_name, column in self.retyped:
            found[name] = retyped(row[old], type_name, column)
        return found


@dataclass(frozen=True, slots=True)
class _Either:
    """Converts rows that may have one of two schemas.

    A row from a snapshot may be older or newer than a change. If its names fit both schemas, the
    form of its values decides.
    """

    mappings: tuple[_Mapping, ...]
    columns: Mapping[str, Column]

    def row(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        found: list[dict[str, Any]] = []
        for mapping in self.mappings:
            made = mapping.row(row)
            if made not in found and all(self._travels(*each) for each in made.items()):
                found.append(made)
        return found[0] if len(found) == 1 else None

    def _travels(self, name: str, value: Any) -> bool:
        try:
            decode(self.columns[name], value)
        except CdcError:
            return False
        return True


class Fitting:
    """Upcasts rows of one table to a plan's columns.

    Args:
        schema: The plan's columns.
        shapes: The schema history of their table.
    """

    def __init__(self, schema: TableSchema, shapes: TableShapes) -> None:
        self._columns = schema.by_name
        self._numbers = shapes.numbers
        self._past = shapes.past
        self._versions = shapes.history.versions[: shapes.upcast_count]
        self._history = shapes.history
        self._known: dict[tuple[range, bool, frozenset[str]], _Mapping | _Either | None] = {}
        self.settled_lsn = shapes.settled_lsn

    def fit(self, row: Mapping[str, Any], lsn: int, *, read: bool) -> dict[str, Any] | None:
        """Returns a row in the plan's columns; None if only a read can determine it.

        Args:
            row: A record's row, with values in wire form.
            lsn: The record's position.
            read: Whether it is from a snapshot, perhaps later than its position.

        Raises:
            LookupError: No known schema explains the row's columns.
        """
        known = *self._candidates(lsn, read=read), frozenset(row)
        if known not in self._known:
            self._known[known] = self._mapping(*known)
        mapping = self._known[known]
        return None if mapping is None else mapping.row(row)

    def _candidates(self, lsn: int, *, read: bool) -> tuple[range, bool]:
        """Returns the versions that a row may have, and whether there may have been others between.

        A snapshot row may have a later version than its position; a comparison of tables knows
        neither the time of a change nor what happened between two comparisons.
        """
        index = self._history.index_at(lsn)
        end = index + 1
        versions = self._history.versions
        unseen = False
        if read:
            end = len(versions)
        elif end < len(versions):
            since = versions[end].seen_after
            unseen = since is not None and since.value <= lsn and end < len(self._versions)
            end += unseen
        return range(max(index, 0), min(end, len(self._versions))), unseen

    def _mapping(
        self,
        candidates: range,
        unseen: bool,
        names: frozenset[str],
    ) -> _Mapping | _Either | None:
        found: list[_Mapping | None] = []
        for index in candidates:
            shape = self._versions[index].shape
            if shape is not None and self._explains(shape, names):
                mapping = self._from(index, shape)
                if mapping not in found:
                    found.append(mapping)
        if not found and not unseen:
            raise LookupError
        if self._past and len(found) > 1:
            return _Either(tuple(filter(None, found)), self._columns)
        # if there is none, or two that differ, it is unknown; such changes requested a read
        return found[0] if len(found) == 1 else None

    def _explains(self, shape: TableShape, names: frozenset[str]) -> bool:
        """Returns whether a schema explains the columns; capture may exclude some of the others."""
        wanted = {c.name for c in shape.columns if c.number in self._numbers.values()}
        return wanted <= names <= shape.names

    def _from(self, index: int, shape: TableShape) -> _Mapping | None:
        if self._past:
            return self._as_it_was(shape)
        later = self._versions[index + 1 :]
        if _filled_since(self._versions[index:]):
            return None
        by_number = shape.by_number
        carried, constant = [], {}
        for name, number in self._numbers.items():
            if number in by_number:
                carried.append((name, by_number[number].name))
            else:
                constant[name] = _missing(self._columns[name], number, later)
        return _Mapping(tuple(carried), constant)

    def _as_it_was(self, shape: TableShape) -> _Mapping:
        last = self._versions[-1].shape
        now = {} if last is None else last.by_number
        carried, other = [], []
        absent: dict[str, Any] = {}
        for name, number in self._numbers.items():
            column = shape.by_number.get(number)
            if column is None:
                absent[name] = None
            elif number not in now or now[number].type_id == column.type_id:
                carried.append((name, column.name))
            else:
                other.append((name, column.name, column.type_name, self._columns[name]))
        return _Mapping(tuple(carried), absent, tuple(other))


def _filled_since(versions: tuple[ShapeVersion, ...]) -> bool:
    """Returns whether rows of the first version got values that are not in the log."""
    return any(map(_filled, versions, versions[1:]))


def _filled(earlier: ShapeVersion, later: ShapeVersion) -> bool:
    if earlier.shape is None or later.shape is None or earlier.shape.oid != later.shape.oid:
        return True
    if later.rewritten:
        return True
    changes = differences(earlier.shape, later.shape, later.rewritten)
    if any(change.kind is ChangeKind.READS_OTHERWISE for change in changes):
        return True
    return later.rewritten is None and any(
        change.kind is ChangeKind.RETYPED or change.computed for change in changes
    )


def _missing(column: Column, number: int, later: tuple[ShapeVersion, ...]) -> Any:
    """Returns the value that Postgres gives to rows older than a column, in wire form."""
    for version in later:
        added = version.shape.by_number.get(number) if version.shape is not None else None
        if added is not None:
            return None if added.missing is None else travelling(column.kind, added.missing)
    return None  # dropped before: a view with policy `ignore` keeps the column without a value


def travelling(kind: ColumnKind, text: str) -> Any:
    """Converts text printed by Postgres to wire form."""
    if kind is ColumnKind.BOOLEAN:
        return text == "t"
    if kind is ColumnKind.INTEGER:
        return int(text)
    if kind is ColumnKind.BYTES:
        return base64.b64encode(bytes.fromhex(text.removeprefix("\\x"))).decode("ascii")
    return text


_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_EXACT: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BITS: Final = {"smallint": 15, "integer": 31, "bigint": 63}
_BOOLEANS: Final = {"t": True, "true": True, "f": False, "false": False}


def retyped(value: Any, type_name: str, column: Column) -> Any:
    """Converts a value from a column's former type to its present one, in wire form.

    Args:
        value: The value in the form of the record.
        type_name: Postgres' own name of its former type.
        column: The column as it is now.

    Returns:
        The value; None if the present type does not represent it exactly.
    """
    if value is None or value == UNCHANGED_PLACEHOLDER:
        return value
    found = _of_text(_text(value, type_name), column)
    try:
        decode(column, found)
    except CdcError:
        return None
    return found


def _text(value: Any, type_name: str) -> str:
    """Returns the text that Postgres produces for a value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if type_name == "bytea":
        return "\\x" + base64.b64decode(value).hex()
    return str(value)


def _of_text(text: str, column: Column) -> Any:
    kind = column.kind
    if kind is ColumnKind.BOOLEAN:
        return _BOOLEANS.get(text)
    if kind is ColumnKind.INTEGER:
        return _integer(text, column)
    if kind is ColumnKind.NUMERIC:
        return text if _EXACT.fullmatch(text) and _fits(Decimal(text), column) else None
    if kind is ColumnKind.BYTES:
        return _bytes(text)
    if kind is ColumnKind.UUID and not _UUID.fullmatch(text):
        return None
    return text


def _integer(text: str, column: Column) -> int | None:
    if not _WHOLE.fullmatch(text):
        return None
    number, limit = int(text), 1 << _BITS.get(column.type_name, 63)
    return number if -limit <= number < limit else None


def _fits(number: Decimal, column: Column) -> bool:
    """Returns whether a numeric column can represent all digits of a number."""
    if column.precision is None:
        return True
    scale = column.scale or 0
    _, digits, exponent = number.normalize().as_tuple()
    after = -int(exponent) if int(exponent) < 0 else 0
    before = len(digits) + int(exponent) if number else 0
    return after <= scale and before <= column.precision - scale


def _bytes(text: str) -> str | None:
    if not re.fullmatch(r"\\x([0-9a-f]{2})*", text):
        return None
    return base64.b64encode(bytes.fromhex(text[2:])).decode("ascii")
