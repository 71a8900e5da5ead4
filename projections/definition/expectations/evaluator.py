"""Conditions on one row, evaluated over exact Python values with SQL's three truth values.

NULL is Python's None. Numbers are exact, as long as no float is among them; NaN equals itself and
is greater than all other numbers, as in Postgres and Spark; texts compare by their code points.
Columns whose types have an equality of their own, but are carried as text, compare as in Postgres
(`character(n)`, `citext`, `uuid`) or not at all (`interval`, `inet`, arrays and others).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from cdc.table import ColumnKind
from projections.definition.expectations.tree import CallExpression, Literal, Name, Node, names
from projections.errors import ConditionError

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = Mapping[str, Any]
Evaluate = Callable[[Row], Any]


class Type(StrEnum):
    """A type of values that can be compared with each other."""

    NUMBER = "number"
    TEXT = "text"
    PADDED = "character(n)"
    CASELESS = "citext"
    UUID = "uuid"
    PRINTED = "value of a type that is carried as its text"
    BOOLEAN = "boolean"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamp with time zone"
    OTHER = "value that can only be NULL or not"
    NULL = "NULL"


TYPES: Final[Mapping[ColumnKind, Type]] = {
    ColumnKind.BOOLEAN: Type.BOOLEAN,
    ColumnKind.INTEGER: Type.NUMBER,
    ColumnKind.NUMERIC: Type.NUMBER,
    ColumnKind.FLOAT: Type.NUMBER,
    ColumnKind.TEXT: Type.TEXT,
    ColumnKind.UUID: Type.UUID,
    ColumnKind.JSON: Type.OTHER,
    ColumnKind.DATE: Type.DATE,
    ColumnKind.TIME: Type.TIME,
    ColumnKind.TIMESTAMP: Type.TIMESTAMP,
    ColumnKind.TIMESTAMPTZ: Type.TIMESTAMPTZ,
    ColumnKind.BYTES: Type.OTHER,
}

# Postgres numerics have at most 131072 digits before the point and 16383 after it, and a condition
# is short: sums and products of its values are exact, however many digits they have
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[Inexact])
_TEXTS: Final = frozenset((Type.TEXT, Type.PADDED, Type.CASELESS, Type.UUID, Type.PRINTED))
"""Types whose values are texts here; `LIKE` and functions of texts take what Postgres prints."""

_AS_TEXT: Final = frozenset((Type.TEXT, Type.PADDED, Type.UUID))
"""Types whose columns compare with one another: by their code points, without padding."""

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class BoundCondition:
    """A condition bound to the columns of a view.

    Attributes:
        columns: The columns that it reads.
        evaluate: Returns True, False or None for a row.
    """

    columns: frozenset[str]
    evaluate: Evaluate


@dataclass(frozen=True, slots=True)
class _Typed:
    """A part of a condition.

    Attributes:
        type: Its type.
        evaluate: Returns its value for a row, in the form in which equal values are equal.
        printed: For a column, returns the value as Postgres prints it, if that is another form.
    """

    type: Type
    evaluate: Evaluate
    printed: Evaluate | None = None

    def printed_if(self, wanted: Type) -> Evaluate:
        """Returns what gives the printed value if the part has this type."""
        return self.printed if self.printed and self.type is wanted else self.evaluate


def fitted(node: Node, columns: Mapping[str, Type]) -> BoundCondition:
    """Binds a condition to the columns of a view.

    Args:
        node: The parsed condition.
        columns: Types of the view's columns.

    Raises:
        ConditionError: It names a missing column, or applies an operator to a wrong type.
    """
    bound = _fit(node, columns)
    if bound.type not in (Type.BOOLEAN, Type.NULL):
        raise ConditionError("a condition must be a boolean", detail=f"a {bound.type}")
    return BoundCondition(frozenset(_column(name, columns) for name in names(node)), bound.evaluate)


def _column(name: Name, columns: Mapping[str, Type]) -> str:
    if name.name in columns:
        return name.name
    alike = [each for each in columns if each.lower() == name.name.lower()]
    if len(alike) == 1 and not name.quoted:
        return alike[0]
    raise ConditionError(
        f"a condition names {name.name}, which its view lacks",
        detail="columns: " + ", ".join(columns),
        hint="change the condition, or include the column in the view",
    )


def _fit(node: Node, columns: Mapping[str, Type]) -> _Typed:
    if isinstance(node, Name):
        return _named(_column(node, columns), columns)
    if isinstance(node, Literal):
        value = node.value
        return _Typed(_type_of(value), lambda _: value)
    parts = [_fit(part, columns) for part in node.parts]
    fit = _FITS.get(node.operator)
    if fit is None or not parts or _COUNTS.get(node.operator, len(parts)) != len(parts):
        raise ConditionError(
            f"{node.operator.lower()} in a condition cannot take {len(parts)} arguments",
            hint="use the functions length, lower, upper, trim, abs, coalesce",
        )
    return fit(node, _read_literals(node, parts))


def _named(name: str, columns: Mapping[str, Type]) -> _Typed:
    change = _EQUAL_FORMS.get(columns[name])
    if change is None:
        return _Typed(columns[name], lambda row: row[name])
    return _Typed(
        columns[name],
        lambda row: None if (text := row[name]) is None else change(text),
        lambda row: row[name],
    )


def _type_of(value: object) -> Type:
    if value is None:
        return Type.NULL
    if isinstance(value, bool):
        return Type.BOOLEAN
    return Type.NUMBER if isinstance(value, Decimal) else Type.TEXT


def _read_literals(node: CallExpression, parts: Sequence[_Typed]) -> list[_Typed]:
    """Converts literal texts that are compared with values of another type than text."""
    wanted = next((part.type for part in parts if part.type in _PARSED), None)
    if wanted is None or node.operator not in (*_COMPARE, "IN", "COALESCE"):
        return list(parts)
    return [
        _parsed(wanted, part.value)
        if isinstance(part, Literal) and isinstance(part.value, str)
        else fit
        for part, fit in zip(node.parts, parts, strict=True)
    ]


def _parsed(wanted: Type, text: str) -> _Typed:
    try:
        value = _PARSED[wanted](text)
    except (ValueError, OverflowError):
        raise ConditionError(
            f"a literal is not a {wanted}",
            detail=text[:40],
            hint="2026-11-21, 2026-11-21 09:30:00" if wanted is not Type.UUID else None,
        ) from None
    return _Typed(wanted, lambda _: value)


def _timestamp(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    if parsed.tzinfo is not None:
        raise ValueError
    return parsed


def _timestamptz(text: str) -> datetime:
    parsed = datetime.fromisoformat(text)
    return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed


def _without_padding(text: str) -> str:
    return text.rstrip(" ")


_EQUAL_FORMS: Final[Mapping[Type, Callable[[str], str]]] = {
    Type.PADDED: _without_padding,
    Type.CASELESS: str.lower,
}
"""What makes equal values of a type equal texts."""

_PARSED: Final[Mapping[Type, Callable[[str], object]]] = {
    **_EQUAL_FORMS,
    Type.UUID: lambda text: str(UUID(text)),
    Type.DATE: date.fromisoformat,
    Type.TIME: time.fromisoformat,
    Type.TIMESTAMP: _timestamp,
    Type.TIMESTAMPTZ: _timestamptz,
}


def _require(node: CallExpression, parts: Sequence[_Typed], wanted: Type) -> None:
    fitting = _TEXTS if wanted is Type.TEXT else {wanted}
    for part in parts:
        if part.type not in fitting | {Type.NULL}:
            raise ConditionError(
                f"a condition applies {node.operator.lower()} to a {part.type}",
                detail=f"a {wanted} is needed",
            )


def _common(node: CallExpression, parts: Sequence[_Typed]) -> Type:
    """Returns the common type of the compared parts."""
    types = list(dict.fromkeys(part.type for part in parts if part.type is not Type.NULL))
    if len(types) > 1 and _AS_TEXT.issuperset(types):
        return Type.TEXT
    if Type.PRINTED in types:
        raise ConditionError(
            f"{node.operator.lower()} in a condition compares values that are carried as text",
            detail=" and ".join(types),
            hint="Postgres compares them by another order; a function of texts, as in "
            "lower(column) = '...', takes the text as docs/types.md shows it",
        )
    if len(types) > 1 or types == [Type.OTHER]:
        raise ConditionError(
            f"{node.operator.lower()} in a condition compares unlike types",
            detail=" and ".join(types),
        )
    return types[0] if types else Type.NULL


def _comparable(value: Any) -> Any:
    """Returns a key that orders numbers, with NaN equal to itself and last."""
    return (1, 0) if value != value else (0, value)  # noqa: PLR0124  # NaN alone differs so


def _compared(compare: Callable[[Any, Any], bool], number: bool) -> Callable[[Any, Any], Any]:
    def of(left: Any, right: Any) -> bool | None:
        if left is None or right is None:
            return None
        if number:
            # compared with a float, a literal is the nearest float, as in engines
            if isinstance(left, float) or isinstance(right, float):
                left, right = float(left), float(right)
            return compare(_comparable(left), _comparable(right))
        return compare(left, right)

    return of


def _comparison(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    of = _compared(_COMPARE[node.operator], _common(node, parts) is Type.NUMBER)
    left, right = (part.evaluate for part in parts)
    return _Typed(Type.BOOLEAN, lambda row: of(left(row), right(row)))


def _among(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    equal = _compared(operator.eq, _common(node, parts) is Type.NUMBER)
    value, *others = (part.evaluate for part in parts)

    def evaluate(row: Row) -> bool | None:
        left = value(row)
        answers = {equal(left, other(row)) for other in others}
        return True if True in answers else None if None in answers else False

    return _Typed(Type.BOOLEAN, evaluate)


def _and(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    _require(node, parts, Type.BOOLEAN)
    left, right = (part.evaluate for part in parts)

    def evaluate(row: Row) -> bool | None:
        one, other = left(row), right(row)
        if one is False or other is False:
            return False
        return None if one is None or other is None else True

    return _Typed(Type.BOOLEAN, evaluate)


def _or(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    _require(node, parts, Type.BOOLEAN)
    left, right = (part.evaluate for part in parts)

    def evaluate(row: Row) -> bool | None:
        one, other = left(row), right(row)
        if one is True or other is True:
            return True
        return None if one is None or other is None else False

    return _Typed(Type.BOOLEAN, evaluate)


def _not(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    _require(node, parts, Type.BOOLEAN)
    one = parts[0].evaluate
    return _Typed(Type.BOOLEAN, lambda row: None if (result := one(row)) is None else not result)


def _is(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    one = parts[0].evaluate
    wanted = {"IS NULL": None, "IS TRUE": True, "IS FALSE": False}[node.operator]
    if wanted is not None:
        _require(node, parts, Type.BOOLEAN)
    return _Typed(Type.BOOLEAN, lambda row: one(row) is wanted)


def _arithmetic(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    _require(node, parts, Type.NUMBER)
    left, right = (part.evaluate for part in parts)
    exact = {"+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply}[node.operator]
    floats = {"+": operator.add, "-": operator.sub, "*": operator.mul}[node.operator]

    def evaluate(row: Row) -> Any:
        one, other = left(row), right(row)
        if one is None or other is None:
            return None
        if isinstance(one, float) or isinstance(other, float):
            return floats(float(one), float(other))
        return exact(Decimal(one), Decimal(other))

    return _Typed(Type.NUMBER, evaluate)


def _like(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    _require(node, parts, Type.TEXT)
    pattern = node.parts[1]
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
        raise ConditionError(
            "the pattern of a LIKE in a condition must be a text", hint="LIKE 'A-%'"
        )
    text = pattern.value.lower() if parts[0].type is Type.CASELESS else pattern.value
    tokens = re.findall(r"\\.|.", text, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    regex = re.compile("".join(wild.get(t) or re.escape(t[-1]) for t in tokens), re.DOTALL)
    one = parts[0].printed_if(Type.PADDED)
    return _Typed(
        Type.BOOLEAN,
        lambda row: None if (text := one(row)) is None else regex.fullmatch(text) is not None,
    )


def _text(
    change: Callable[[str], Any], given: Type
) -> Callable[[CallExpression, Sequence[_Typed]], _Typed]:
    def fit(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
        _require(node, parts, Type.TEXT)
        one = parts[0].printed_if(Type.CASELESS)
        return _Typed(given, lambda row: None if (text := one(row)) is None else change(text))

    return fit


def _abs(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    _require(node, parts, Type.NUMBER)
    one = parts[0].evaluate
    # abs() of a decimal rounds to the context of the thread
    return _Typed(
        Type.NUMBER,
        lambda row: (
            None
            if (number := one(row)) is None
            else number.copy_abs()
            if isinstance(number, Decimal)
            else abs(number)
        ),
    )


def _coalesce(node: CallExpression, parts: Sequence[_Typed]) -> _Typed:
    given = _common(node, parts)
    evaluated = [part.evaluate for part in parts]

    def evaluate(row: Row) -> Any:
        return next((value for one in evaluated if (value := one(row)) is not None), None)

    return _Typed(given, evaluate)


_FITS: Final[Mapping[str, Callable[[CallExpression, Sequence[_Typed]], _Typed]]] = {
    **dict.fromkeys(_COMPARE, _comparison),
    **dict.fromkeys("+-*", _arithmetic),
    **dict.fromkeys(("IS NULL", "IS TRUE", "IS FALSE"), _is),
    "AND": _and,
    "OR": _or,
    "NOT": _not,
    "IN": _among,
    "LIKE": _like,
    "LENGTH": _text(len, Type.NUMBER),
    "LOWER": _text(str.lower, Type.TEXT),
    "UPPER": _text(str.upper, Type.TEXT),
    "TRIM": _text(lambda text: text.strip(" "), Type.TEXT),
    "ABS": _abs,
    "COALESCE": _coalesce,
}
_COUNTS: Final = dict.fromkeys(("LENGTH", "LOWER", "UPPER", "TRIM", "ABS"), 1)
