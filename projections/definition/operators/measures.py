"""Measures: aggregates over the rows of a group, as expressions of Spark SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from projections.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ERROR_LEAST: Final = 0.005
"""A group's sketch then has 64 Ki counters; half the error needs four times as many."""
_ERROR_MOST: Final = 0.3
_ROUNDED_LEAST: Final = 0.001
"""About 3,500 buckets then cover one to a thousand; half the error needs twice as many."""


@dataclass(frozen=True, slots=True)
class Top:
    """The first rows of each group, ranked by a column in descending order.

    Attributes:
        by: Column to rank by.
        rows: Number of rows.
        columns: Columns of the rows to list, beside the ranking one.
    """

    by: str
    rows: int
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise DeclarationError(
                f"the first rows by {self.by} must be one or more", detail=f"rows={self.rows}"
            )
        refuse_doubled(f"the first rows by {self.by}", (self.by, *self.columns))


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile of a column: interpolated between the two nearest values.

    The exact form stores each distinct value with its count. With an error, values are first put
    into buckets whose bounds grow by a factor (DDSketch, Masson et al. 2019): the state does not
    grow with the rows, and each value counts as one whose relative distance from it is at most the
    error. The result depends only on the values, not on their order: a maintained view and a
    rebuilt one are equal.

    Attributes:
        of: The column; a number.
        share: Share of the values at or below the percentile: 0.95 for p95.
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
        """Returns the percentile of a group, in Spark SQL."""
        values = quoted(self.of) if self.error is None else _bucketed(self.of, self.error)
        return f"percentile({values}, {self.share!r}D)"


@dataclass(frozen=True, slots=True)
class Approximate:
    """The number of distinct values of a column, by a sketch of fixed size (HyperLogLog++).

    The result depends only on the values, not on their order or distribution: a maintained view and
    a rebuilt one are equal.

    Attributes:
        of: The column.
        error: Standard error, relative to the number: two of three results are closer.
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
    """The measures of each group, by the name of their column in the view.

    Attributes:
        count: Name of the column with the number of rows; None for none.
        rate: Name of the column with the rows per second of a window; None for none.
        sums: Columns to add up.
        averages: Columns to average.
        least: Columns to take the least value of.
        greatest: Columns to take the greatest value of.
        distinct: Columns whose distinct values are counted.
        percentiles: Percentiles of columns.
        top: The first rows.
        approximate_distinct: Columns whose distinct values are counted by a sketch.
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
        """Returns the expressions of a SELECT with GROUP BY.

        Args:
            width_s: Seconds of each window; None if widths differ or there are no windows.
            only: Condition on the rows to measure, if groups contain other rows too.

        Raises:
            DeclarationError: A rate is requested for windows without a fixed width.
        """
        kept = f" FILTER (WHERE {only})" if only else ""
        expressions = self._over(kept, width_s)
        for name, column in (self.distinct or {}).items():
            expressions[name] = f"count(DISTINCT {quoted(column)}){kept}"
        for name, sketch in (self.approximate_distinct or {}).items():
            counted = f"approx_count_distinct({quoted(sketch.of)}, {sketch.error!r}D)"
            expressions[name] = f"{counted}{kept}"
        for name, wanted in (self.percentiles or {}).items():
            expressions[name] = f"{wanted.expression}{kept}"
        for name, first in (self.top or {}).items():
            ranked = ", ".join(quoted(column) for column in (first.by, *first.columns))
            rows = f"sort_array(collect_list(struct({ranked})){kept}, false)"
            expressions[name] = f"slice({rows}, 1, {int(first.rows)})"
        return _listed(expressions)

    def of_frames(self, width_s: float, frame: str) -> str:
        """Returns the expressions of a SELECT with a window frame for each row.

        Args:
            width_s: Seconds of each frame.
            frame: Name of the frame.

        Raises:
            DeclarationError: A frame does not support one of the measures.
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
        """Returns the expressions common to groups and frames, by name.

        Args:
            over: The SQL after each function: the frame, or a filter on the group's rows.
            width_s: Seconds of a group or frame; None if they differ.
        """
        expressions: dict[str, str] = {}
        if self.count is not None:
            expressions[self.count] = f"count(*){over}"
        if self.rate is not None:
            if width_s is None:
                raise DeclarationError(
                    f"{self.rate} needs a window of fixed width",
                    hint="window=Tumbling(...), Hopping(...) or Sliding(...)",
                )
            expressions[self.rate] = f"count(*){over} / {width_s!r}D"
        for function, columns in (
            ("sum", self.sums),
            ("avg", self.averages),
            ("min", self.least),
            ("max", self.greatest),
        ):
            expressions |= {n: f"{function}({quoted(c)}){over}" for n, c in (columns or {}).items()}
        return expressions

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of all measures."""
        named = (self.sums, self.averages, self.least, self.greatest)
        more = (self.distinct, self.percentiles, self.top, self.approximate_distinct)
        single = [name for name in (self.count, self.rate) if name is not None]
        return (*single, *(name for each in (*named, *more) for name in (each or {})))


def refuse_doubled(what: str, columns: Sequence[str]) -> None:
    """Refuses fields of one name, also if they differ by case: Spark does not tell them apart.

    Raises:
        DeclarationError: Two columns have one name.
    """
    folded = [each.lower() for each in columns]
    if doubled := [each for each in columns if folded.count(each.lower()) > 1]:
        raise DeclarationError(
            f"{what} would have two fields named {doubled[-1]}", hint="name each column once"
        )


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
    """Quotes a column name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _listed(expressions: Mapping[str, str]) -> str:
    return ", ".join(f"{expression} AS {quoted(name)}" for name, expression in expressions.items())
