"""Measures: aggregates over the rows of a group, as expressions of Spark SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ERROR_LEAST: Final = 0.005
"""A group's sketch then has 64 Ki counters; half the error takes four times as many."""
_ERROR_MOST: Final = 0.3
_ROUNDED_LEAST: Final = 0.001
"""Some 3,500 buckets are then between one and a thousand; half the error takes twice as many."""


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
    """A percentile of a column: interpolated between the two nearest values.

    The exact form stores each distinct value with its count. With an error, values are first put
    into buckets whose bounds grow by a factor (DDSketch, Masson et al. 2019): the state does not
    grow with the rows, and each value counts as one whose relative distance from it is at most the
    error. The result depends on the values alone, not on their order: the same rows give the same
    number, maintained or rebuilt.

    Attributes:
        of: The column; a number.
        share: Share of the values that are not above it: 0.95 for p95.
        error: Greatest relative distance between a value and the one that it counts as; None for
            the exact form. Values nearer to zero than 1e-300 count as zero.
    """

    of: str
    share: float
    error: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise DeclarationError(
                f"a percentile of {self.of} must be between 0 and 1",
                detail=f"{self.share:g}",
                hint="0.95 for p95",
            )
        if self.error is not None and not _ROUNDED_LEAST <= self.error <= _ERROR_MOST:
            raise DeclarationError(
                f"the error of the percentile of {self.of} is out of range",
                detail=f"{self.error:g}",
                hint=(f"use {_ROUNDED_LEAST:g} to {_ERROR_MOST:g}, or none for exact percentiles"),
            )

    @property
    def expression(self) -> str:
        """The percentile of a group, in Spark SQL."""
        values = quoted(self.of) if self.error is None else _bucketed(self.of, self.error)
        return f"percentile({values}, {self.share!r}D)"


@dataclass(frozen=True, slots=True)
class Approximate:
    """How many distinct values a column has, by a sketch of fixed size (HyperLogLog++).

    The result depends on the values alone, not on their order or on how they were distributed: the
    same rows give the same number, maintained or rebuilt.

    Attributes:
        of: The column.
        error: The standard error, relative to the number: two of three answers are nearer.
    """

    of: str
    error: float = 0.02

    def __post_init__(self) -> None:
        if not _ERROR_LEAST <= self.error <= _ERROR_MOST:
            raise DeclarationError(
                f"the error of the distinct count of {self.of} is out of range",
                detail=f"{self.error:g}",
                hint=(
                    f"use {_ERROR_LEAST:g} to {_ERROR_MOST:g}, or distinct={...} for exact counts"
                ),
            )


@dataclass(frozen=True, slots=True)
class Measures:
    """Measures of each group; by the name that it has in the view.

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
            found[name] = f"{wanted.expression}{kept}"
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
                f"{strange[0]} is not supported for a sliding window",
                hint=("use count, rate, sums, averages, least or greatest; or window=Hopping(...)"),
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
                    f"{self.rate} needs a window of fixed width",
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


def _bucketed(column: str, error: float) -> str:
    """Returns the value that a column's value counts as: the middle of its bucket, in Spark SQL.

    Bucket `i` covers `growth ** (i - 1)` to `growth ** i`; the value with the same relative
    distance to both is `(1 + error) * growth ** (i - 1)`. Spark computes logarithms and powers by
    rules that are the same on every machine; their rounding is smaller than the margin that the
    error reserves here. Values beyond 1e300 count as themselves, since their middle might overflow.
    """
    error *= 1 - 1e-9
    growth = (1 + error) / (1 - error)
    value = f"CAST({quoted(column)} AS DOUBLE)"
    bucket = f"ceil(log({growth!r}D, abs({value})))"
    middle = f"signum({value}) * {1 + error!r}D * power({growth!r}D, {bucket} - 1)"
    return (
        f"CASE WHEN abs({value}) < 1e-300D THEN 0D WHEN abs({value}) <= 1e300D THEN {middle}"
        f" ELSE {value} END"
    )


def quoted(name: str) -> str:
    """Returns the name of a column as Spark SQL reads it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _listed(expressions: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} AS {quoted(name)}" for name, expression in expressions.items())
