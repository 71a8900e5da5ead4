"""Rows of a table, from the JSON forms in which they travel to exact Python values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdc.errors import SchemaMismatchError
from cdc.values import decode, decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc.table import TableName, TableSchema


class RowDecoder:
    """Decodes rows by what is known of their tables.

    A consumer reads rows of many ages, so a row need not have the table's columns of today. It has
    the columns that it had when it was written: those that the table has now are decoded by their
    types; one that the table does not have (any more, or yet) keeps the form in which it travelled.

    Threads: may be used from several at once.

    Args:
        schemas: What is known of the tables.
        look_again: Describes a table anew once a row has a column that is not known; returns None
            if it cannot.
    """

    def __init__(
        self,
        schemas: Mapping[TableName, TableSchema],
        look_again: Callable[[TableName], TableSchema | None] | None = None,
    ) -> None:
        self._schemas = dict(schemas)
        self._decoders = {table: decoder(schema) for table, schema in self._schemas.items()}
        self._look_again = look_again
        self._looked_for: set[tuple[TableName, str]] = set()

    def row(self, table: TableName, raw: Mapping[str, Any] | None) -> dict[str, object] | None:
        """Returns a row's values by column; a part of a row is a row.

        Raises:
            ValueDecodeError: A value does not fit its column's type or Python's range.
        """
        if raw is None:
            return None
        whole = self._decoders.get(table)
        if whole is not None:
            try:
                return whole(raw)
            except SchemaMismatchError:
                self._look_for(table, raw)
        schema = self._schemas.get(table)
        columns = schema.by_name if schema is not None else {}
        return {
            name: decode(columns[name], value) if name in columns else value
            for name, value in raw.items()
        }

    def _look_for(self, table: TableName, raw: Mapping[str, Any]) -> None:
        """Asks once for each column that is not known: a new one, or one that is gone by now."""
        unknown = {(table, name) for name in raw.keys() - self._schemas[table].by_name.keys()}
        if self._look_again is None or unknown <= self._looked_for:
            return
        self._looked_for |= unknown
        found = self._look_again(table)
        if found is not None:
            self._schemas[table] = found
            self._decoders[table] = decoder(found)
