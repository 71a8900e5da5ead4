from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.broker.topics import truncation
from cdc.broker.topics.extent import PartitionExtent
from cdc.errors import CaptureSpecError
from cdc.retention import OURS, TopicRetention
from cdc.upkeep.retention import (
    LEFT_MIN,
    ReaderState,
    keeps_s,
    kept,
    lasts_s,
    rate,
    reader,
)
from projections.job.data_loss import lost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_S = 1_000_000.0
WEEK = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY_MS)}
PLACE = ("shop.public.orders", 0)
HALF_FULL = PartitionExtent(100, 200, 10**9, NOW_S - 3 * 86_400, NOW_S - 1)


def test_the_seeds_arithmetic_six_terabytes_at_150_megabytes_a_second() -> None:
    assert 11.1 == pytest.approx((lasts_s(6e12, 150e6) or 0) / 3600, abs=0.1)
    assert lasts_s(6e12, 0) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7 days", TopicRetention(7 * DAY_MS)),
        ("36 hours", TopicRetention(36 * HOUR_MS)),
        ("1 minute", TopicRetention(60_000)),
        ("50 GB", TopicRetention(None, 50 * 10**9)),
        ("3 days, 2TiB", TopicRetention(3 * DAY_MS, 2 * 2**40)),
        ("latest", TopicRetention(HOUR_MS, latest=True)),
    ],
)
def test_a_policy_is_read_as_people_write_it(text: str, expected: TopicRetention) -> None:
    assert expected == TopicRetention.parse(text, HOUR_MS)


@pytest.mark.parametrize("text", ["", "7", "days", "0 days", "1 day, 2 days", "-1 GB", "7 weeks"])
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(CaptureSpecError, match="is invalid"):
        TopicRetention.parse(text, HOUR_MS)


def test_every_property_of_a_policy_is_one_that_apply_looks_after() -> None:
    for text in ("7 days", "50 GB", "7 days, 50 GB", "latest"):
        assert TopicRetention.parse(text, HOUR_MS).properties().keys() <= set(OURS)


def test_what_a_forgetting_that_was_killed_has_altered_is_put_right_by_apply() -> None:
    altered: list[str] = []

    @contextmanager
    def noted(_: str, __: str, configs: Mapping[str, str]) -> Iterator[None]:
        altered.extend(configs)
        yield

    with (
        mock.patch.object(truncation, "_altered", noted),
        truncation.short_pieces("", ""),
        truncation.files_go_at_once("", ""),
    ):
        pass

    assert 2 == len(altered)
    assert set(altered) <= set(OURS)


def test_the_latest_of_every_key_remembers_deletes_as_long_as_a_reader_may_be_away() -> None:
    found = TopicRetention.parse("latest", 7 * DAY_MS).properties()

    assert "compact" == found["cleanup.policy"]
    assert str(7 * DAY_MS) == found["delete.retention.ms"] == found["min.compaction.lag.ms"]


@pytest.mark.parametrize(
    ("configs", "per_second", "expected"),
    [
        (WEEK, 0.0, 7 * 86_400),
        ({"retention.bytes": "1000", "retention.ms": "-1"}, 10.0, 100),
        (WEEK | {"retention.bytes": "1000"}, 10.0, 100),
        (WEEK | {"retention.bytes": "1000"}, 0.0, 7 * 86_400),
        ({"cleanup.policy": "compact"}, 10.0, None),
        ({"retention.ms": "-1"}, 10.0, None),
    ],
)
def test_a_topic_keeps_until_the_first_of_its_limits(
    configs: dict[str, str], per_second: float, expected: float | None
) -> None:
    assert expected == keeps_s(configs, per_second)


def test_a_rate_is_what_grows_now_or_else_what_is_held_over_its_time() -> None:
    assert 200.0 == rate(HALF_FULL, 1_000, 5.0)
    assert 10**9 / (3 * 86_400 - 1) == pytest.approx(rate(HALF_FULL, 0, 5.0))
    assert 0.0 == rate(PartitionExtent(0, 0, 0, None, None), 0, 5.0)


def standing(wanted: int, age_s: float | None) -> tuple[ReaderState, float | None]:
    found = kept(PLACE, HALF_FULL, WEEK, 0.0, NOW_S)
    at_s = None if age_s is None else NOW_S - age_s
    told = reader("group", found, HALF_FULL, wanted, at_s, NOW_S)
    return told.state, told.left_s


def test_a_reader_is_warned_before_the_end_and_told_apart_after_it() -> None:
    week = 7 * 86_400

    assert (ReaderState.OK, week - 60) == standing(199, 60)
    assert (ReaderState.AT_RISK, week * 0.2) == standing(101, week * 0.8)
    assert (ReaderState.LOST, 0.0) == standing(99, None)
    assert (ReaderState.OK, None) == standing(200, None), "it has read everything"


def test_a_lost_reader_is_told_with_topic_partition_and_both_offsets() -> None:
    found = kept(PLACE, HALF_FULL, WEEK, 0.0, NOW_S)

    error = reader("group", found, HALF_FULL, 40, None, NOW_S).error()

    assert "HW-C052" == error.code
    assert "shop.public.orders" in error.message
    assert "partition 0, wanted offset 40, earliest 100: 60 records" in (error.detail or "")


@given(age_s=st.floats(0, 14 * 86_400), wanted=st.integers(100, 199))
def test_the_alert_comes_before_the_loss_at_a_quarter_of_what_is_kept(
    age_s: float, wanted: int
) -> None:
    state, left_s = standing(wanted, age_s)

    assert left_s is not None
    assert (left_s < LEFT_MIN * 7 * 86_400) == (state is ReaderState.AT_RISK)


def test_a_query_that_lost_records_says_which_and_one_that_has_not_says_nothing() -> None:
    ends = {("a", 0): (10, 20), ("a", 1): (0, 5)}

    assert lost("cache", {("a", 0): 10, ("a", 1): 5}, ends) is None
    for wanted, words in (
        ({("a", 0): 9}, "topic a, partition 0, wanted offset 9, earliest 10"),
        ({("a", 1): 6}, "was recreated or truncated, wanted offset 6, its end 5"),
        ({("b", 0): 1}, "does not exist any more"),
    ):
        error = lost("cache", wanted, ends)
        assert error is not None
        assert words in (error.detail or "")
        assert not error.retriable
