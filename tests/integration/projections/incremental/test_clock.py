"""Times that are put right by the server's clock, against the same said in Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import pytest

from projections.definition.registry import load
from tests.oracles.event_rows import ABSURD, EPOCH

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
EDGES = (datetime(2, 1, 1, tzinfo=UTC), datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC))
NEAR = tuple(NOON + timedelta(microseconds=us) for us in (-3_600_000_000, -1, 0, 1, 10_800_000_000))
FIRST, LAST = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
MOMENTS = (None, *ABSURD, *EDGES, *NEAR)


class Corrected(NamedTuple):
    """What is said of a row; the time in microseconds since 1970."""

    at_us: int | None
    fast_s: float | None
    waited_s: float | None


def corrected(
    event: datetime | None, sent: datetime | None, received: datetime | None
) -> Corrected:
    if usable(event) and sent is not None and sent < event:
        return Corrected(micros(event), None, None)
    fast = micros(sent) - micros(received) if usable(sent) and usable(received) else None
    waited = micros(sent) - micros(event) if usable(sent) and usable(event) else None
    at = None if event is None else micros(event)
    if at is not None and fast is not None and usable(event):
        moved = at - fast
        at = moved if micros(FIRST) <= moved < micros(LAST) else at
    fast_s, waited_s = (None if us is None else us / 1_000_000 for us in (fast, waited))
    return Corrected(at, fast_s, waited_s)


def usable(moment: datetime | None) -> TypeGuard[datetime]:
    return moment is not None and FIRST <= moment < LAST


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


VIEWS = """
from headwater import source, view

readings = view.mirror("readings", source("web", tables=["readings"]).readings)
view.clocked(
    "corrected", readings, event="device_at", sent="sent_at", received="received_at", keys=["id"]
)
"""


def test_times_are_put_right_where_the_clock_is_known_and_left_where_it_is_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Every combination of times that are missing, absurd, at an edge, before, after and equal."""
    (tmp_path / "views.py").write_text(VIEWS, encoding="utf-8")
    view = load(tmp_path / "views.py").derived["corrected"]
    given = dict(enumerate(product(MOMENTS, repeat=3)))
    ddl = "id int, device_at timestamp, sent_at timestamp, received_at timestamp"
    rows = [(number, *times) for number, times in given.items()]
    spark.createDataFrame(rows, ddl).createOrReplaceTempView("readings")

    said = f"SELECT id, unix_micros(at), clock_fast_s, waited_s FROM ({view.sql})"  # noqa: S608
    found = {number: Corrected(*told) for number, *told in spark.sql(said).collect()}

    assert {number: corrected(*times) for number, times in given.items()} == found
    for number, (event, _, received) in given.items():
        at_us, fast_s, waited_s = found[number]
        if usable(event) and usable(received) and fast_s is not None and at_us != micros(event):
            assert at_us is not None
            assert at_us <= micros(received)  # it did not happen after it was received
        assert waited_s is None or waited_s >= 0
