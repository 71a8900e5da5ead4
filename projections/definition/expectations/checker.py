"""Inspection: rows of one view, each beside the view's expectations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from projections.definition.expectations.evaluator import TYPES, BoundCondition, Type, fitted
from projections.definition.expectations.expectation import Expectation, OnFail
from projections.errors import ConditionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.table import TableSchema


_STRENGTH = tuple(OnFail)


class Inspection:
    """Tells which expectations a row does not meet, and counts.

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
        """Columns that are looked at."""
        return frozenset().union(*(fit.columns for _, fit in self._conditions))

    @property
    def columns(self) -> frozenset[str]:
        """Columns that decide whether the view has a row."""
        said = (fit.columns for each, fit in self._conditions if each.withholds)
        return frozenset().union(*said)

    def unmet(self, row: Mapping[str, Any], *, counts: bool = True) -> Expectation | None:
        """Returns the strongest of the expectations that withhold a row; None if it stays.

        Args:
            row: Exact values by column. Those of `columns` must be there; a condition on others
                that is only counted is passed over where one is not.
            counts: Whether what it does not meet is added to `failed`.
        """
        found: Expectation | None = None
        for each, condition in self._conditions:
            if not condition.columns <= row.keys() or condition.evaluate(row) is True:
                continue
            if counts:
                self.failed[each.name] += 1
            if each.withholds and (found is None or _stronger(each, found)):
                found = each
        return found


def types_of(schema: TableSchema) -> dict[str, Type]:
    """Returns the types of a table's columns, as conditions see them."""
    return {column.name: TYPES[column.kind] for column in schema.columns}


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
