"""Conditions of a search: `total>=10`, `status=paid`, `note is null`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from projections.errors import SearchQueryError
from projections.stores.opensearch.fields import exact_name, field_named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from projections.stores.opensearch.fields import SearchField

_HINT: Final = "field=value, also with !=, <, <=, >, >=, or: field is null, field is not null"
_COMPARED: Final = re.compile(r"\s*(.+?)\s*(>=|<=|!=|=|>|<)\s?(.*)", re.DOTALL)
_NULL: Final = re.compile(r"\s*(.+?)\s+is\s+(not\s+)?null\s*", re.IGNORECASE)
_CLOCK: Final = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d?:.*)")
_LONGS: Final = 1 << 63


class Operator(StrEnum):
    """How a field's value is compared."""

    EQUAL = "="
    OTHER = "!="
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    MISSING = "is null"
    PRESENT = "is not null"


_RANGES: Final = {
    Operator.LESS: "lt",
    Operator.AT_MOST: "lte",
    Operator.MORE: "gt",
    Operator.AT_LEAST: "gte",
}


@dataclass(frozen=True, slots=True)
class FieldCondition:
    """A condition on a field.

    Attributes:
        field: The field.
        operator: The comparison.
        value: The other value, as text; ignored for NULL.
    """

    field: str
    operator: Operator
    value: str = ""

    @classmethod
    def parse(cls, text: str) -> FieldCondition:
        """Parses a condition in the syntax of the command line.

        Raises:
            SearchQueryError: It has no field or no operator.
        """
        compared = _COMPARED.fullmatch(text)
        if compared is not None:
            return cls(compared[1], Operator(compared[2]), compared[3])
        null = _NULL.fullmatch(text)
        if null is None:
            raise SearchQueryError(
                "a condition has no value to compare", detail=text[:80], hint=_HINT
            )
        return cls(null[1], Operator.PRESENT if null[2] else Operator.MISSING)

    def clause(self, fields: Mapping[str, SearchField], view: str) -> dict[str, Any]:
        """Converts the condition to the engine's form.

        Raises:
            SearchFieldError: The field is missing, or is not indexed for this comparison.
            SearchQueryError: The value does not have the field's type.
        """
        field = field_named(fields, self.field, view)
        if self.operator in (Operator.MISSING, Operator.PRESENT):
            if field.exact is None and not field.words:
                exact_name(field, view, "in a condition")
            there = {"exists": {"field": field.name}}
            absent = self.operator is Operator.MISSING
            return {"bool": {"must_not": [there]}} if absent else there
        name = exact_name(field, view, "in a condition")
        value = _typed(field, self.value)
        if self.operator in _RANGES:
            return {"range": {name: {_RANGES[self.operator]: value}}}
        equal = {"term": {name: {"value": value}}}
        return equal if self.operator is Operator.EQUAL else {"bool": {"must_not": [equal]}}


def _typed(field: SearchField, text: str) -> Any:
    value = _TYPES.get(field.type, str)(text)
    if value is None:
        raise SearchQueryError(
            f"a value does not fit field {field.name}",
            detail=f"{text[:80]!r} is not a {field.type}",
            hint=_HINT,
        )
    return value


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False, "t": True, "f": False}.get(text.strip().lower())


def _long(text: str) -> int | None:
    try:
        value = int(text)
    except ValueError:
        return None
    return value if -_LONGS <= value < _LONGS else None


def _double(text: str) -> float | None:
    try:
        value = Decimal(text)
    except InvalidOperation:
        return None
    return float(value) if value.is_finite() else None


def _instant(text: str) -> str:
    clock = _CLOCK.fullmatch(text.strip())
    return f"{clock[1]}T{clock[2]}" if clock else text.strip()


_TYPES: Final = {
    "boolean": _boolean,
    "long": _long,
    "double": _double,
    "date": _instant,
    "date_nanos": _instant,
}
