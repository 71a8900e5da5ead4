"""Document form of a view's rows and keys, as caches and search engines store them."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING

import orjson

from cdc.table import ColumnKind, TableSchema
from cdc.values import decode, encoder
from projections.changes.reduced import missing_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdc.table import Column
    from cdc.values import Json
    from projections.changes.row_change import RowChange
    from projections.errors import NoStoredRowError
    from projections.planning.view_plan import ViewPlan

SEPARATOR = ":"
NULL_TEXT = r"\N"
"""Text of NULL in a key; no value has this text."""

_PLAIN = (ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID)
_JSON_KINDS = (ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.FLOAT)
_WORDS = ("NaN", "Infinity", "-Infinity")
_PARTS = re.compile(r"((?:[^\\:]|\\.)*):", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_LIKE_NULL = re.compile(r"\\+N")
_ESCAPES = str.maketrans({"\\": "\\\\", SEPARATOR: "\\" + SEPARATOR})


def key_text(parts: Sequence[object]) -> str:
    r"""Returns the text of a key.

    The text of a key of one column is that of its value; only a text of backslashes and an `N`,
    which could be mistaken for NULL, gets another backslash. The parts of a longer key are joined
    by `:`, with `:` and `\` escaped by `\`, so two keys never share a text.

    Args:
        parts: The key columns' values in their document form.
    """
    if len(parts) == 1:
        return NULL_TEXT if parts[0] is None else text_alone(_text(parts[0]))
    return SEPARATOR.join([key_part(part) for part in parts])


def text_alone(text: str) -> str:
    """Returns the text of a key of one column, given the text of its value."""
    return "\\" + text if text[:1] == "\\" and _LIKE_NULL.fullmatch(text) else text


def key_part(part: object) -> str:
    """Returns the text of one part of a longer key."""
    if part is None:
        return NULL_TEXT
    return _text(part).translate(_ESCAPES)


def key_values(text: str, columns: Sequence[Column]) -> tuple[Json, ...]:
    """Returns the values of a key, in document form, from a text that `key_text` returned."""
    plain = len(columns) == 1
    parts = [text] if plain else _PARTS.findall(text + SEPARATOR)
    return tuple(
        None
        if part == NULL_TEXT and column.nullable
        else _value(column, _value_alone(part) if plain else _ESCAPED.sub(r"\1", part))
        for column, part in zip(columns, parts, strict=True)
    )


def _value_alone(text: str) -> str:
    return text[1:] if text[:2] == "\\\\" and _LIKE_NULL.fullmatch(text) else text


def decoded_key(values: Sequence[Json], columns: Sequence[Column]) -> tuple[object, ...]:
    """Decodes the values of a key from document form.

    Raises:
        ValueDecodeError: A value cannot be stored, so it cannot be in a key.
    """
    return tuple(
        # records have a float as text
        decode(column, str(value) if column.kind is ColumnKind.FLOAT else value)
        for column, value in zip(columns, values, strict=True)
    )


def source_key(values: Sequence[Json], columns: Sequence[Column]) -> tuple[str, ...]:
    """Converts the values of a key from document form to texts that Postgres parses."""
    return tuple(
        "\\x" + base64.b64decode(str(value)).hex()
        if column.kind is ColumnKind.BYTES
        else _text(value)
        for column, value in zip(columns, values, strict=True)
    )


class DocumentForm:
    """Encodes the rows of one view."""

    def __init__(self, plan: ViewPlan) -> None:
        self.plan = plan
        self._encode = encoder(plan.schema)
        by_name = plan.schema.by_name
        columns = () if plan.append_only else tuple(by_name[name] for name in plan.keys)
        self._encode_key = encoder(TableSchema(plan.schema.table, columns))
        # a key of a derived view can be NULL
        derived = any(column.nullable for column in columns)
        self._plain = len(columns) == 1 and columns[0].kind in _PLAIN and not derived

    def name(self, change: RowChange) -> str:
        """Returns the text of a change's key."""
        return self.name_of(change.key)

    def name_of(self, key: tuple[object, ...]) -> str:
        """Returns the text of a key."""
        if self._plain or self.plan.append_only:
            # the same result as below, several times as fast
            return text_alone(str(key[0]))
        parts = self._encode_key(dict(zip(self.plan.keys, key, strict=True)))
        return key_text(list(parts.values()))

    def missing_values(self, change: RowChange) -> NoStoredRowError:
        """Returns the error for a change whose unchanged values are in no stored row."""
        return missing_values(self.plan.schema, change.unchanged_columns)

    def fields(self, row: Mapping[str, object]) -> dict[str, Json]:
        """Returns a row's document."""
        return self._encode(row)


def _value(column: Column, text: str) -> Json:
    if column.kind in _JSON_KINDS and text not in _WORDS:
        value: Json = orjson.loads(text)
        return value
    return text


def _text(part: object) -> str:
    if part is None:
        return NULL_TEXT
    return part if isinstance(part, str) else orjson.dumps(part).decode()
