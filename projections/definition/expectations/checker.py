"""Inspection: evaluates a view's expectations over its rows."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from cdc.table import ColumnKind
from projections.definition.expectations.evaluator import TYPES, BoundCondition, Type, fitted
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.errors import ConditionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.table import Column, TableSchema


_STRENGTH = tuple(OnFail)
_MODIFIERS: Final = re.compile(r"\([\d,-]+\)")
_PADDED: Final = frozenset(("character", "bpchar"))
_PRINTED: Final = frozenset(
    (
        *("interval", "time with time zone", "money", "bit", "bit varying"),
        *("inet", "cidr", "macaddr", "macaddr8", "pg_lsn", "xid", "xid8", "tid"),
        *("point", "line", "lseg", "box", "path", "polygon", "circle"),
        *("tsvector", "tsquery", "xml", "jsonpath", "pg_snapshot"),
        *("int4range", "int8range", "numrange", "tsrange", "tstzrange", "daterange"),
        *("int4multirange", "int8multirange", "nummultirange"),
        *("tsmultirange", "tstzmultirange", "datemultirange"),
    )
)
"""Built-in types whose values are carried as texts and do not compare as texts."""


class Inspection:
    """Finds the expectations that a row does not meet, and counts them.

    Args:
        view: The view's name.
        expectations: Its expectations.
        columns: Types of its columns.

    Raises:
        ConditionError: A condition does not fit the columns.
    """

    def __init__(
        self, view: str, expectations: Iterable[Expectation], columns: Mapping[str, Type]
    ) -> None:
        self._conditions = [(each, _fitted(view, each, columns)) for each in expectations]
        self.failed: Counter[str] = Counter({each.name: 0 for each, _ in self._conditions})

    @property
    def named(self) -> frozenset[str]:
        """Returns the columns that the conditions read."""
        return frozenset().union(*(fit.columns for _, fit in self._conditions))

    @property
    def columns(self) -> frozenset[str]:
        """Returns the columns that decide whether the view has a row."""
        columns = (fit.columns for each, fit in self._conditions if each.withholds)
        return frozenset().union(*columns)

    def unmet(self, row: Mapping[str, Any], *, counts: bool = True) -> Expectation | None:
        """Returns the strictest expectation that excludes a row; None if the row stays.

        Args:
            row: Exact values by column, including those of `columns`. A condition that is only
                counted is skipped if one of its columns is missing.
            counts: Whether to add unmet expectations to `failed`.
        """
        strictest: Expectation | None = None
        for each, condition in self._conditions:
            if not condition.columns <= row.keys() or condition.evaluate(row) is True:
                continue
            if counts:
                self.failed[each.name] += 1
            if each.withholds and (strictest is None or _stronger(each, strictest)):
                strictest = each
        return strictest

    def met(self, row: Mapping[str, Any]) -> bool:
        """Returns whether a row meets every expectation, also those that are only counted.

        Args:
            row: Exact values of all columns that the conditions read.
        """
        return all(condition.evaluate(row) is True for _, condition in self._conditions)


def types_of(schema: TableSchema) -> dict[str, Type]:
    """Returns the types of a table's columns, as conditions use them."""
    return {column.name: _type(column) for column in schema.columns}


def _type(column: Column) -> Type:
    if column.kind is not ColumnKind.TEXT:
        return TYPES[column.kind]
    name = _MODIFIERS.sub("", column.type_name)
    if name.rpartition(".")[2] == "citext":  # an extension's: it has a schema
        return Type.CASELESS
    if name in _PADDED:
        return Type.PADDED
    printed = name.endswith("[]") or name.startswith("interval ") or name in _PRINTED
    return Type.PRINTED if printed else Type.TEXT


def _stronger(one: Expectation, other: Expectation) -> bool:
    return _STRENGTH.index(one.on_fail) > _STRENGTH.index(other.on_fail)


def _fitted(view: str, expectation: Expectation, columns: Mapping[str, Type]) -> BoundCondition:
    try:
        return fitted(expectation.parsed, columns)
    except ConditionError as error:
        raise ConditionError(
            f"view {view}, expectation {expectation.name}: {error.message}",
            detail=error.detail,
            hint=error.hint,
        ) from None
