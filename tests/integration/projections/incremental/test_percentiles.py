"""Percentiles with a stated error, beside the exact ones of the same values."""

from __future__ import annotations

from collections import defaultdict
from math import exp, inf, isnan, log, nan, nextafter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.operators.measures import Measures, Percentile

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

SHARES = (0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.999, 1)


def percentiles(
    spark: SparkSession, rows: list[tuple[int, float]], error: float | None
) -> dict[int, tuple[Any, ...]]:
    """Of the values of each group, percentiles by their shares."""
    wanted = {f"p{n}": Percentile("v", share, error) for n, share in enumerate(SHARES)}
    listed = Measures(percentiles=wanted).of_groups()
    spark.createDataFrame(rows, "g INT, v DOUBLE").createOrReplaceTempView("measured")
    found = spark.sql(f"SELECT g, {listed} FROM measured GROUP BY g").collect()  # noqa: S608
    return {row["g"]: tuple(row)[1:] for row in found}


@pytest.mark.parametrize("error", [0.001, 0.01, 0.3])
def test_percentiles_with_an_error_are_the_exact_ones_of_values_that_far_away(
    spark: SparkSession, error: float
) -> None:
    random = Random(int(1000 * error))  # noqa: S311  # chance that is repeated
    draws: list[Callable[[], float]] = [
        lambda: random.lognormvariate(4, 2),
        lambda: random.gauss(0, 100),
        lambda: float(random.randint(-3, 3)),
        lambda: random.choice([1, -1]) * 10 ** random.uniform(-299, 299),
        lambda: -random.paretovariate(0.5),
    ]
    # as many as lie between two values, and groups of hardly any
    sizes = (1, 2, 3, 10, 500)
    made = [draw for draw in draws for _ in sizes]
    rows = [(n, draw()) for n, draw in enumerate(made) for _ in range(sizes[n % len(sizes)])]

    exact, found = percentiles(spark, rows, None), percentiles(spark, rows, error)

    values: dict[int, list[float]] = defaultdict(list)
    for group, value in sorted(rows):
        values[group].append(value)
    for group, own in values.items():
        for share, one, other in zip(SHARES, exact[group], found[group], strict=True):
            place = share * (len(own) - 1)
            beside = own[int(place)], own[min(int(place) + 1, len(own) - 1)]
            assert abs(other - one) <= error * max(map(abs, beside)) * (1 + 1e-12)
    assert found == percentiles(spark, random.sample(rows, len(rows)), error)


@pytest.mark.parametrize("error", [0.001, 0.01, 0.3])
def test_no_value_counts_as_one_further_away_than_the_error_and_few_differ(
    spark: SparkSession, error: float
) -> None:
    growth = (1 + error) / (1 - error)
    bounds = [growth**n for n in range(-400, 400)]
    given = [near for at in bounds for near in (at, nextafter(at, 0), nextafter(at, inf), -at)]
    given += [0.0, -0.0, 1e-299, 1e299, 1e300, -1e300, 1.7e308, 5e-324, -1e-301]
    chosen = Random(1)  # noqa: S311  # as above
    between = [exp(chosen.uniform(0, log(1000))) for _ in range(20_000)]

    found = percentiles(spark, list(enumerate([*given, *between, inf, -inf, nan])), error)

    for group, value in enumerate([*given, *between]):
        (only,) = set(found[group])
        assert abs(only - value) <= max(error * abs(value), 1e-300)
    assert len({found[len(given) + n] for n in range(len(between))}) <= log(1000) / log(growth) + 2
    *_, above, below, none = (found[group][0] for group in sorted(found))
    assert (inf, -inf) == (above, below)
    assert isnan(none)
