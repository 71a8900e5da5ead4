"""Key forms: the one way in which the source writes each value of a key, where there is one.

Records come by the text of their key. Two texts may name the same row, such as `1.0` and `1.00`
from before and after a numeric column was given more decimals. The form here is that of Postgres
for the column as it is now: two keys in this form are the same row only if their texts are equal.
"""

from __future__ import annotations

import base64
import json
import re
from decimal import Context, Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.errors import ValueDecodeError
from cdc.table import ColumnKind
from cdc.values import UNCHANGED_PLACEHOLDER, decode

if TYPE_CHECKING:
    from cdc.table import Column, TableSchema

_DAY: Final = r"\d{4}-\d{2}-\d{2}"
_CLOCK: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{0,5}[1-9])?"
_PRINTED: Final = {
    ColumnKind.DATE: _DAY,
    ColumnKind.TIME: _CLOCK,
    ColumnKind.TIMESTAMP: f"{_DAY} {_CLOCK}",
    ColumnKind.TIMESTAMPTZ: rf"{_DAY} {_CLOCK}\+00",
    # the last character before a pad has bits that are not part of the value
    ColumnKind.BYTES: "(?:[A-Za-z0-9+/]{4})*"
    "(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?",
}
_UNQUOTED: Final = {
    ColumnKind.BOOLEAN: "(?:true|false)",
    ColumnKind.INTEGER: r"(?:0|-?[1-9]\d{0,17})",
}
_ANY_TEXT: Final = frozenset([ColumnKind.TEXT, ColumnKind.UUID])
_UNESCAPED: Final = r'[^"\\\x00-\x1f]*'
_TYPES: Final = {ColumnKind.BOOLEAN: bool, ColumnKind.INTEGER: int}
_SCALE_MAX: Final = 1000
_DIGITS: Final = Context(prec=200_000)
"""More digits than a numeric has."""


def one_form(column: Column) -> bool:
    """Returns whether equal values of a column are equal texts.

    A numeric without a declared scale keeps the scale of each value, and a float has two zeros.
    """
    return column.kind in _UNQUOTED or column.kind in _ANY_TEXT or printed_form(column) is not None


@cache
def printed_form(column: Column) -> str | None:
    """Returns the pattern of a value's one text, for RE2 as well.

    It is None where any text is a value, and where there is no such pattern. A number between -1
    and 0 is not in it: there is no negative zero.
    """
    if column.kind is not ColumnKind.NUMERIC:
        return _PRINTED.get(column.kind)
    if column.scale is None or column.scale > _SCALE_MAX:
        return None
    decimals = rf"\.\d{{{column.scale}}}" if column.scale > 0 else ""
    return rf"(?:0|-?[1-9]\d*){decimals}"


def in_form(column: Column, value: object) -> bool:
    """Returns whether a value of a parsed key is in the one form of its column."""
    if type(value) is not _TYPES.get(column.kind, str):
        return False
    form = printed_form(column)
    if form is None:
        return one_form(column)
    return re.fullmatch(form, str(value), re.ASCII) is not None


def key_pattern(schema: TableSchema) -> str:
    """Returns a pattern of the keys of a table in their one form, for RE2.

    It does not match every such key, and matches integers beyond their type.
    """
    parts = [
        re.escape(f"{json.dumps(name, ensure_ascii=False)}:") + _json_pattern(schema.by_name[name])
        for name in schema.key
    ]
    return "^" + re.escape("{") + ",".join(parts) + re.escape("}") + "$"


def key_in_form(schema: TableSchema, key: bytes) -> bool:
    """Returns whether no other key of this form names the same row.

    A table whose key has changed has records of a row under keys of several forms. Each store
    tells by their versions which of them is the newest, and a commit in bulk looks at none.
    """
    try:
        fields = orjson.loads(key)
    except orjson.JSONDecodeError:
        return False
    return (
        isinstance(fields, dict)
        and tuple(fields) == schema.key
        and all(in_form(schema.by_name[name], value) for name, value in fields.items())
        and orjson.dumps(fields) == key
    )


def rewritten(column: Column, value: Any) -> Any:
    """Returns a value of a parsed key in the one form of its column; as it is if it has none."""
    if printed_form(column) is None or value is None or value == UNCHANGED_PLACEHOLDER:
        return value
    if column.kind is ColumnKind.NUMERIC and type(value) is int:  # it was an integer column
        value = str(value)
    try:
        return _printed(column, decode(column, value))
    except (ValueDecodeError, ArithmeticError):
        return value


def _printed(column: Column, value: Any) -> str:
    """Returns a decoded value as Postgres prints it, and the connector sends it."""
    if column.kind is ColumnKind.BYTES:
        return base64.b64encode(value).decode()
    if column.kind is ColumnKind.NUMERIC:
        decimals = Decimal(1).scaleb(-max(column.scale or 0, 0))
        exact = value.quantize(decimals, context=_DIGITS)
        return format(exact or abs(exact), "f") if exact == value else str(value)
    if column.kind is ColumnKind.TIMESTAMPTZ:
        return f"{_without_zeros(str(value.replace(tzinfo=None)))}+00"
    return _without_zeros(str(value))


def _without_zeros(text: str) -> str:
    return text.rstrip("0") if "." in text else text


def _json_pattern(column: Column) -> str:
    form = _UNQUOTED.get(column.kind)
    return f'"{printed_form(column) or _UNESCAPED}"' if form is None else form
