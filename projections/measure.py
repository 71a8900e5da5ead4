"""Measures: what an aggregate says of the rows of a group, as expressions of Spark SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ERROR_LEAST: Final = 0.005
"""A group's sketch then has 64 Ki counters; half the error takes four times as many."""
_ERROR_MOST: Final = 0.3


@dataclass(frozen=True, slots=True)
class Top:
    """The first rows of each group, ranked by a column, the greatest first.

    Attributes:
        by: Column that ranks.
        rows: How many.
        columns: Which columns of them are kept, beside the ranking one.
    """

    by: str
    rows: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of a column: exact, between the two nearest values where it lies between them.

    Attributes:
        of: The column; a number.
        share: Of the values, how many are not above it: 0.95 for p95.
    """

    of: str
    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise DeclarationError(
                f"a percentile of {self.of} is a share of its values",
                detail=f"{self.share:g}",
                hint="0.95 for p95",
            )


@dataclass(frozen=True, slots=True)
class Approximate:
    """How many values a column has, each counted once, by a sketch of fixed size (HyperLogLog++).

    It depends on the values alone, neither on their order nor on who counted which of them: the
    same rows give the same number, kept or rebuilt.

    Attributes:
        of: The column.
        error: The standard error, as a part of the number: two of three answers are nearer.
    """

    of: str
    error: float = 0.02

    def __post_init__(self) -> None:
        if not _ERROR_LEAST <= self.error <= _ERROR_MOST:
            raise DeclarationError(
                f"values of {self.of} cannot be counted with such an error",
                detail=f"{self.error:g}",
                hint=f"from {_ERROR_LEAST:g} to {_ERROR_MOST:g}; distinct={{...}} is exact",
            )


@dataclass(frozen=True, slots=True)
class Measures:
    """What is said of each group; by the name that it has in the view.

    Attributes:
        count: What the number of rows is called, if it is wanted.
        rate: What the rows per second of a window are called, if they are wanted.
        sums: Columns that are added up.
        averages: Columns of which the mean is taken.
        least: Columns of which the least value is kept.
        greatest: Columns of which the greatest value is kept.
        distinct: Columns whose values are counted, each once.
        percentiles: Percentiles of columns.
        top: The first rows.
        approximate_distinct: Columns whose values are counted, each once, by a sketch.
    """

    count: str | None = None
    rate: str | None = None
    sums: Mapping[str, str] | None = None
    averages: Mapping[str, str] | None = None
    least: Mapping[str, str] | None = None
    greatest: Mapping[str, str] | None = None
    distinct: Mapping[str, str] | None = None
    percentiles: Mapping[str, Percentile] | None = None
    top: Mapping[str, Top] | None = None
    approximate_distinct: Mapping[str, Approximate] | None = None

    def of_groups(self, width_s: float | None = None, only: str = "") -> str:
        """Returns what a SELECT with groups lists.

        Args:
            width_s: Seconds of each window; None if they differ, or there are no windows.
            only: A condition on the rows that are measured, where others have a group as well.

        Raises:
            DeclarationError: A rate is asked for of windows that have no width.
        """
        kept = f" FILTER (WHERE {only})" if only else ""
        found = self._over(kept, width_s)
        for name, column in (self.distinct or {}).items():
            found[name] = f"count(DISTINCT {quoted(column)}){kept}"
        for name, sketch in (self.approximate_distinct or {}).items():
            counted = f"approx_count_distinct({quoted(sketch.of)}, {sketch.error!r}D)"
            found[name] = f"{counted}{kept}"
        for name, wanted in (self.percentiles or {}).items():
            found[name] = f"percentile({quoted(wanted.of)}, {wanted.share!r}D){kept}"
        for name, first in (self.top or {}).items():
            ranked = ", ".join(quoted(column) for column in (first.by, *first.columns))
            rows = f"sort_array(collect_list(struct({ranked})){kept}, false)"
            found[name] = f"slice({rows}, 1, {int(first.rows)})"
        return _listed(found)

    def of_frames(self, width_s: float, frame: str) -> str:
        """Returns what a SELECT lists of whose rows each has a frame.

        Args:
            width_s: Seconds of each frame.
            frame: Its name.

        Raises:
            DeclarationError: A measure is asked for that a frame does not have.
        """
        of_sets = (self.distinct, self.percentiles, self.top, self.approximate_distinct)
        strange = [name for each in of_sets for name in (each or {})]
        if strange:
            raise DeclarationError(
                f"{strange[0]} is not kept for a window that slides with every row",
                hint="count, rate, sums, averages, least and greatest are; or window=Hopping(...)",
            )
        return _listed(self._over(f" OVER {frame}", width_s))

    def _over(self, over: str, width_s: float | None) -> dict[str, str]:
        """Expressions that rows of a group and rows of a frame have, by their names.

        Args:
            over: What follows each function: which frame, or which rows of the group.
            width_s: Seconds of a group or frame; None if they differ.
        """
        found: dict[str, str] = {}
        if self.count is not None:
            found[self.count] = f"count(*){over}"
        if self.rate is not None:
            if width_s is None:
                raise DeclarationError(
                    f"{self.rate} is a rate of what has no fixed width",
                    hint="window=Tumbling(...), Hopping(...) or Sliding(...)",
                )
            found[self.rate] = f"count(*){over} / {width_s!r}D"
        for function, columns in (
            ("sum", self.sums),
            ("avg", self.averages),
            ("min", self.least),
            ("max", self.greatest),
        ):
            found |= {n: f"{function}({quoted(c)}){over}" for n, c in (columns or {}).items()}
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """What all measures are called."""
        named = (self.sums, self.averages, self.least, self.greatest)
        more = (self.distinct, self.percentiles, self.top, self.approximate_distinct)
        single = [name for name in (self.count, self.rate) if name is not None]
        return (*single, *(name for each in (*named, *more) for name in (each or {})))


def quoted(name: str) -> str:
    """Returns the name of a column as Spark SQL reads it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _listed(expressions: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} AS {quoted(name)}" for name, expression in expressions.items())
