"""Values that a column had under another type, in the type that it has now.

When a column gets another type, Postgres makes the values of its rows anew, by an expression that
may be anything. What a row had before is what the log says it had; a history keeps it where the new
type holds it exactly, by the text that Postgres writes for it, and has NULL where it does not.
"""

from __future__ import annotations

import base64
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import CdcError
from cdc.table import ColumnKind
from cdc.values import UNCHANGED_PLACEHOLDER, decode

if TYPE_CHECKING:
    from cdc.table import Column

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_EXACT: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BITS: Final = {"smallint": 15, "integer": 31, "bigint": 63}
_BOOLEANS: Final = {"t": True, "true": True, "f": False, "false": False}


def retyped(value: Any, type_name: str, column: Column) -> Any:
    """Returns a value that a column had under another type, as it travels in its present one.

    Args:
        value: In the form in which it travelled then.
        type_name: Postgres' own name of the type that it had.
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
    """Whether a numeric has room for all digits of a number, before and after its point."""
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
