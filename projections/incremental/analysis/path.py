"""A path from the changed rows of one use of an input to the columns wanted.

A path is a small query of inner joins. Its steps are values; the engine runs them with the plan's
own expressions, which they name by address. Columns keep the numbers that they have in the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.incremental.analysis.query_plan import Address


@dataclass(frozen=True, slots=True)
class Changed:
    """The changed rows of the use that the path begins at, as they were and as they are.

    Attributes:
        leaf: The leaf operator of the use.
        columns: Numbers of the columns wanted.
    """

    leaf: int
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of another use, in the version that the order of the changes gives it.

    Attributes:
        leaf: The leaf operator of the use.
        columns: Numbers of the columns wanted.
    """

    leaf: int
    columns: frozenset[int]


@dataclass(frozen=True, slots=True)
class Derived:
    """Rows with columns made from theirs, and nothing else.

    Attributes:
        child: The rows.
        columns: Number of each column and the expression that makes it; None makes NULL.
        shape: An attribute of the plan for each column, which gives it its name and type.
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
    """Rows to which an operator of the plan adds columns, each by itself, or repeats them.

    Attributes:
        child: The rows.
        operator: Number of the operator: one that explodes, or runs Python functions.
    """

    child: Step
    operator: int


@dataclass(frozen=True, slots=True)
class Pair:
    """An equality of a join, its sides in the order of the path's.

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
        pairs: What must be equal.
        few: Whether the left side comes from the changed rows, so that it is the small one.
    """

    left: Step
    right: Step
    pairs: tuple[Pair, ...]
    few: bool


Step = Changed | Table | Derived | Filtered | Widened | Matched


def steps(step: Step) -> Iterator[Step]:
    """A step and all that it stands on, the innermost first."""
    if isinstance(step, Matched):
        yield from steps(step.left)
        yield from steps(step.right)
    elif isinstance(step, Derived | Filtered | Widened):
        yield from steps(step.child)
    yield step


def tables(step: Step) -> frozenset[int]:
    """The leaves of the other uses that a path passes through."""
    return frozenset(found.leaf for found in steps(step) if isinstance(found, Table))
