"""Freshness is measured from before the commit until after the read."""

from __future__ import annotations

import math

import pytest

from headwater.demo.freshness import CounterReading, freshness_of, quantile


def test_a_commit_is_seen_when_its_counter_or_a_later_one_is_read():
    commits = [CounterReading(1, 10.0), CounterReading(2, 10.1), CounterReading(3, 10.2)]
    sightings = [CounterReading(2, 10.5), CounterReading(3, 10.6)]

    found = freshness_of(commits, sightings)

    assert found.samples == 3
    assert found.unseen == 0
    assert found.p50_ms == pytest.approx(400.0)
    assert found.max_ms == pytest.approx(500.0)


def test_a_commit_that_nobody_saw_is_counted_and_not_averaged():
    found = freshness_of(
        [CounterReading(1, 1.0), CounterReading(2, 2.0)], [CounterReading(1, 1.25)]
    )

    assert found.samples == 1
    assert found.unseen == 1
    assert found.p99_ms == pytest.approx(250.0)


def test_without_samples_there_is_no_number():
    found = freshness_of([], [])

    assert found.samples == 0
    assert math.isnan(found.p50_ms)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)]
)
def test_quantiles_are_values_that_were_measured(share, expected):
    assert quantile([float(value) for value in range(1, 101)], share) == expected
