"""Conditions that no row can meet.

Spark's optimizer finds most of them: it replaces a column by a value that equals it, but does not
compare ranges or lists (`amount > 9 AND amount < 5`, `status IN ('a', 'b') AND status = 'c'`). This
module checks the rest for those. If it finds nothing, a row may still be impossible.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.incremental.spark.java_classes import java_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"
_MIRRORED: Final = {
    "EqualTo": "EqualTo",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}


def impossible(rows: DataFrame, conditions: Sequence[str]) -> bool:
    """Returns whether some Spark SQL conditions can never hold together.

    Args:
        rows: The rows that the conditions refer to; they are not read. Their session must have no
            rule that evaluates rows in the plan.
        conditions: The conditions.
    """
    for condition in conditions:
        rows = rows.where(f"CAST(({condition}) AS BOOLEAN)")  # a bare NULL too
    plan = rows._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    if plan.nodeName() == "LocalRelation":  # the form of a filter that is false
        return True
    return plan.nodeName() == "Filter" and _never(rows.sparkSession, plan.condition())


class _Range(NamedTuple):
    """Values between two literals, each None if unbounded.

    Attributes:
        least: Lower bound.
        most: Upper bound.
        within: Whether both bounds are excluded.
    """

    least: Any = None
    most: Any = None
    within: bool = False


class _Claim(NamedTuple):
    """A requirement on an expression: that it is NULL, or in one of some ranges.

    Attributes:
        of: The expression.
        ranges: The ranges; None if it must be NULL.
    """

    of: Any
    ranges: list[_Range] | None


def _never(session: SparkSession, condition: Any) -> bool:
    """Returns whether a condition that Spark has simplified can never hold."""
    if condition.nodeName() == "Or":
        return all(_never(session, each) for each in _children(condition))
    parts = list(_conjuncts(condition))
    if any(part.nodeName() == "Or" and _never(session, part) for part in parts):
        return True
    claims = [claim for part in parts if (claim := _claim(part)) is not None]
    return any(
        one.of.semanticEquals(other.of) and _exclude(session, one.ranges, other.ranges)
        for one, other in combinations(claims, 2)
    )


def _conjuncts(condition: Any) -> Iterator[Any]:
    if condition.nodeName() == "And":
        for child in _children(condition):
            yield from _conjuncts(child)
    else:
        yield condition


def _claim(part: Any) -> _Claim | None:
    """Returns the values that a comparison with literals allows; None for other conditions."""
    kind, children = part.nodeName(), _children(part)
    if kind == "IsNull":
        return _Claim(children[0], None)
    if kind == "IsNotNull":
        return _Claim(children[0], [_Range()])
    if kind == "In" and all(map(_literal, children[1:])):
        return _Claim(children[0], [_Range(each, each) for each in children[1:]])
    if kind not in _MIRRORED:
        return None
    one, other = children
    if _literal(one):
        kind, one, other = _MIRRORED[kind], other, one
    if not _literal(other):
        return None
    within = kind in {"GreaterThan", "LessThan"}
    least = None if kind.startswith("Less") else other
    most = None if kind.startswith("Greater") else other
    return _Claim(one, [_Range(least, most, within)])


def _exclude(
    session: SparkSession, some: Sequence[_Range] | None, others: Sequence[_Range] | None
) -> bool:
    if some is None or others is None:
        return some is not others
    return all(
        _below(session, one, other) or _below(session, other, one)
        for one in some
        for other in others
    )


def _below(session: SparkSession, one: _Range, other: _Range) -> bool:
    """Returns whether all values of one range are below another's, as Spark compares them."""
    if one.most is None or other.least is None:
        return False
    apart = "LessThanOrEqual" if one.within or other.within else "LessThan"
    compared = java_class(session, f"{_EXPRESSIONS}.{apart}")(one.most, other.least)
    return compared.eval(None) is True  # NULL if unknown


def _literal(expression: Any) -> bool:
    return bool(expression.nodeName() == "Literal")


def _children(expression: Any) -> list[Any]:
    children = expression.children()
    return [children.apply(place) for place in range(children.size())]
