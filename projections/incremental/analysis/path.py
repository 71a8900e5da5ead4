"""A path from the changed rows of one use of an input to the wanted columns.

A path is a small query of inner joins. Its steps are values; the engine runs them with the plan's
own expressions, which they refer to by address. Columns keep their numbers from the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.incremental.analysis.query_plan import Address


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed rows of the use at which the path begins, before and after the change.

    Attributes:
        leaf: The leaf operator of the use.
        columns: Numbers of the wanted columns.
    """

    leaf: int
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of another use, in the version that the order of changes determines.

    Attributes:
        leaf: The leaf operator of the use.
        columns: Numbers of the wanted columns.
    """

    leaf: int
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class Derived:
    """Rows with only columns computed from theirs.

    Attributes:
        child: The rows.
        columns: Number of each column and its expression; None for NULL.
        shape: For each column, an attribute of the plan with its name and type.
    """

    child: Step
    columns: tuple[tuple[int, Address | None], ...]
    shape: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Filtered:
    """Rows for which a condition holds."""

    child: Step
    condition: Address


@dataclass(frozen=True, slots=True)
class Widened:
    """Rows that an operator of the plan extends by columns, row by row, or repeats.

    Attributes:
        child: The rows.
        operator: Number of the operator, which explodes a column or runs Python functions.
    """

    child: Step
    operator: int


@dataclass(frozen=True, slots=True)
class Pair:
    """An equality of a join, with its sides in the path's order.

    Attributes:
        left: Expression over the side where the path begins.
        right: Expression over the other side.
        null_safe: Whether NULL equals NULL.
        text: The equality in words.
    """

    left: Address
    right: Address
    null_safe: bool
    text: str


@dataclass(frozen=True, slots=True)
class Matched:
    """An inner join by equalities.

    Attributes:
        left: The side that the path comes from.
        right: The side that it goes to.
        pairs: The equalities.
        few: Whether the left side comes from changed rows, so that it is the small one.
    """

    left: Step
    right: Step
    pairs: tuple[Pair, ...]
    few: bool


Step = Changed | Table | Derived | Filtered | Widened | Matched


def steps(step: Step) -> Iterator[Step]:
    """Returns a step and all steps below it, the innermost first."""
    if isinstance(step, Matched):
        yield from steps(step.left)
        yield from steps(step.right)
    elif isinstance(step, Derived | Filtered | Widened):
        yield from steps(step.child)
    yield step


def tables(step: Step) -> frozenset[int]:
    """Returns the leaves of the other uses that a path reads."""
    return frozenset(table.leaf for table in steps(step) if isinstance(table, Table))
