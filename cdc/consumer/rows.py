"""Decodes rows of a table from JSON to exact Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from cdc.errors import SchemaMismatchError, ValueDecodeError
from cdc.values import decode, decoder, of_another_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.lsn import Lsn
    from cdc.position import ChangePosition
    from cdc.table import Column, TableName, TableSchema

    LookAgain: TypeAlias = Callable[[TableName, Lsn], tuple[TableSchema | None, Lsn]]


class RowDecoder:
    """Decodes rows by the known schemas of their tables.

    A consumer reads old rows too, so a row need not have the table's present columns or types. It
    has the columns with which it was written. Columns that the table still has are decoded by their
    present types. A value of a column that no longer exists, or had another type, keeps its JSON
    form.

    Threads may share it.

    Args:
        schemas: Known schemas of the tables.
        look_again: Describes a table as of a log position or later, and returns the end of the log
            before; the table is None if it was dropped. `row` raises its errors.
    """

    def __init__(
        self,
        schemas: Mapping[TableName, TableSchema],
        look_again: LookAgain | None = None,
    ) -> None:
        self._schemas = dict(schemas)
        self._decoders = {table: decoder(schema) for table, schema in self._schemas.items()}
        self._look_again = look_again
        self._looked: dict[TableName, tuple[int, Lsn]] = {}

    def row(
        self, table: TableName, raw: Mapping[str, Any] | None, position: ChangePosition
    ) -> dict[str, object] | None:
        """Returns a row's values by column; a part of a row is a row.

        Args:
            table: The row's table.
            raw: The encoded row.
            position: Position of its change: a row that does not fit, from after the last
                description, may be of a table that was altered since.

        Raises:
            ValueDecodeError: A value has its column's type but is beyond Python's range.
        """
        if raw is None:
            return None
        whole = self._decoders.get(table)
        if whole is None:
            return dict(raw)
        try:
            return whole(raw)
        except (SchemaMismatchError, ValueDecodeError):
            if self._look_again is not None and self._is_new(table, raw, position):
                found, lsn = self._look_again(table, position.lsn)
                self._looked[table] = (position.epoch, lsn)
                if found is not None:
                    self._schemas[table], self._decoders[table] = found, decoder(found)
        columns = self._schemas[table].by_name
        return {
            name: _value(columns[name], value) if name in columns else value
            for name, value in raw.items()
        }

    def _is_new(self, table: TableName, raw: Mapping[str, Any], position: ChangePosition) -> bool:
        """Returns whether a row does not fit and is newer than its table's description."""
        if self._looked.get(table, (0, position.lsn)) >= (position.epoch, position.lsn):
            return False
        columns = self._schemas[table].by_name
        return any(name not in columns or not _fits(columns[name], raw[name]) for name in raw)


def _fits(column: Column, raw: object) -> bool:
    try:
        decode(column, raw)
    except ValueDecodeError:
        return False
    return True


def _value(column: Column, raw: object) -> object:
    try:
        return decode(column, raw)
    except ValueDecodeError:
        if of_another_type(column.kind, raw):
            return raw
        raise
