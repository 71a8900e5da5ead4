"""Upcasts rows of any age to the columns that a view has.

A record has the columns that its table had when the row was written. The history of the table has
these; columns are matched by their number, so a renamed column keeps its values, a new one gets
what Postgres itself gives to old rows, and a dropped one is left out. Values that only Postgres
knows come with the read that such a change requests; unknown columns are refused.

A history stores former rows, not only the present ones. An older row is complete for that purpose:
it has the values of a column under its former type, and lacks columns that were added later.

Values of a column under a former type, converted to the present type.

When the type of a column changes, Postgres computes the values of its rows by an arbitrary
expression. The former value of a row is the one in the log; a history keeps it if the new type
holds it exactly, by the text that Postgres writes for it, and has NULL otherwise.
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
    """How the columns of a plan follow from those that its table had in the course of time.

    Attributes:
        history: The table's shapes.
        numbers: Number of each of the plan's columns in the table, by its name in the view.
        until: Number of the newest note that was decided on: what it did not allow for is not
            carried over. None allows for all of them.
        left_out: Names of the columns that its table had beside them.
        past: Whether rows stand for what was, as in a history, and not for what is.
    """

    history: TableHistory
    numbers: Mapping[str, int]
    until: int | None = None
    left_out: frozenset[str] = frozenset()
    past: bool = False

    @property
    def foreseen(self) -> int:
        """How many of the versions rows are carried over from."""
        versions = self.history.versions
        if self.until is None:
            return len(versions)
        known = [place for place, version in enumerate(versions) if version.id <= self.until]
        last = known[-1] if known else 0
        shape = versions[last].shape
        for place in range(last + 1, len(versions)):
            later = versions[place].shape
            if shape is None or later is None or _captured(later) != _captured(shape):
                return place
        return len(versions)

    @property
    def complete(self) -> bool:
        """Whether rows of every version are carried over."""
        return self.foreseen == len(self.history.versions)

    @property
    def older_names(self) -> dict[str, tuple[str, ...]]:
        """Other names that the plan's columns had, the newest first."""
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
        """Position before which a row with the plan's column names may mean something else."""
        versions = self.history.versions
        captured = self.numbers.keys() | self.left_out
        settled = 0
        for place, version in enumerate(versions):
            if version.shape is None or version.shape.names != captured:
                continue
            columns = (c for c in version.shape.columns if c.name in self.numbers)
            numbers = {column.name: column.number for column in columns}
            unlike = numbers != self.numbers or place >= self.foreseen
            if unlike or _filled_since(versions[place : self.foreseen]):
                last = place + 1 == len(versions)
                settled = _NEVER if last else versions[place + 1].lsn.value
        return settled


_NEVER: Final = 1 << 64


def _captured(shape: TableShape) -> list[tuple[int, str, tuple[int, int]]]:
    return [(column.number, column.name, column.type_id) for column in shape.columns]


@dataclass(frozen=True, slots=True)
class _Mapping:
    """How rows of one shape become rows of the plan."""

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
    """How rows become rows of the plan that may have one shape or another.

    That is so of a row that was read: it may be older or younger than a change. Where its names fit
    both shapes, the form of its values tells.
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
    """Carries rows of one table over to a plan's columns.

    Args:
        schema: The plan's columns.
        shapes: The history of their table.
    """

    def __init__(self, schema: TableSchema, shapes: TableShapes) -> None:
        self._columns = schema.by_name
        self._numbers = shapes.numbers
        self._past = shapes.past
        self._versions = shapes.history.versions[: shapes.foreseen]
        self._history = shapes.history
        self._known: dict[tuple[range, bool, frozenset[str]], _Mapping | _Either | None] = {}
        self.settled_lsn = shapes.settled_lsn

    def fit(self, row: Mapping[str, Any], lsn: int, *, read: bool) -> dict[str, Any] | None:
        """Returns a row in the plan's columns; None where only a read can tell what it is now.

        Args:
            row: A record's row, its values as they travel.
            lsn: The record's position.
            read: Whether it was read from the table, perhaps later than at its position.

        Raises:
            LookupError: No known shape explains the row's columns.
        """
        known = *self._candidates(lsn, read=read), frozenset(row)
        if known not in self._known:
            self._known[known] = self._mapping(*known)
        mapping = self._known[known]
        return None if mapping is None else mapping.row(row)

    def _candidates(self, lsn: int, *, read: bool) -> tuple[range, bool]:
        """Which versions a row may have, and whether there may have been others between.

        A read sees a later one than its position says; a look does not tell when, nor what was
        between two looks.
        """
        place = self._history.place(lsn)
        end = place + 1
        versions = self._history.versions
        unseen = False
        if read:
            end = len(versions)
        elif end < len(versions):
            since = versions[end].seen_after
            unseen = since is not None and since.value <= lsn and end < len(self._versions)
            end += unseen
        return range(max(place, 0), min(end, len(self._versions))), unseen

    def _mapping(
        self,
        candidates: range,
        unseen: bool,
        names: frozenset[str],
    ) -> _Mapping | _Either | None:
        found: list[_Mapping | None] = []
        for place in candidates:
            shape = self._versions[place].shape
            if shape is not None and self._explains(shape, names):
                mapping = self._from(place, shape)
                if mapping not in found:
                    found.append(mapping)
        if not found and not unseen:
            raise LookupError
        if self._past and len(found) > 1:
            return _Either(tuple(filter(None, found)), self._columns)
        # of none or two that differ no one knows which; such changes have asked for a read
        return found[0] if len(found) == 1 else None

    def _explains(self, shape: TableShape, names: frozenset[str]) -> bool:
        """Columns may be left out at capture, but none that the view has."""
        wanted = {c.name for c in shape.columns if c.number in self._numbers.values()}
        return wanted <= names <= shape.names

    def _from(self, place: int, shape: TableShape) -> _Mapping | None:
        if self._past:
            return self._as_it_was(shape)
        later = self._versions[place + 1 :]
        if _filled_since(self._versions[place:]):
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
    """Whether rows of the first version got values since then that the log does not have."""
    return any(map(_filled, versions, versions[1:]))


def _filled(earlier: ShapeVersion, later: ShapeVersion) -> bool:
    if earlier.shape is None or later.shape is None or earlier.shape.oid != later.shape.oid:
        return True
    if later.rewritten is not None:
        return later.rewritten
    return any(
        change.kind is ChangeKind.RETYPED or change.computed
        for change in differences(earlier.shape, later.shape, None)
    )


def _missing(column: Column, number: int, later: tuple[ShapeVersion, ...]) -> Any:
    """What Postgres gives to rows that are older than a column, as it travels."""
    for version in later:
        added = version.shape.by_number.get(number) if version.shape is not None else None
        if added is not None:
            return None if added.missing is None else travelling(column.kind, added.missing)
    return None  # dropped before: a view that ignores that keeps the column without a value


def travelling(kind: ColumnKind, text: str) -> Any:
    """Returns the form in which a value travels, from the text that Postgres prints."""
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
    """Returns a value that a column had under another type, as it travels in its present one.

    Args:
        value: The value in the form of the record.
        type_name: Postgres' own name of its former type.
        column: The column as it is now.

    Returns:
        The value; None where the present type does not hold it exactly.
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
    """What Postgres writes for a value when it is made a text."""
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
    """Whether a numeric can represent all digits of a number."""
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
