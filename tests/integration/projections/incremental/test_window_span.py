"""Windows whose ends no row moves are kept from the rows that lie in them, and no others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from projections.definition.operators.time_bounds import span_of
from projections.definition.operators.windows import keys_of
from tests.oracles.event_rows import DDL, NIGHT, Row, declared
from tests.oracles.event_windows import ALL, WINDOWS
from tests.support.frames import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize("few_max", [500, 0], ids=["few", "many"])
@pytest.mark.parametrize(("kind", "most"), [("tumbling", 8), ("day", 6 * 96)])
def test_rows_of_windows_that_do_not_change_are_not_read(
    spark: SparkSession, kind: str, most: int, few_max: int
) -> None:
    """There is a row in each quarter of an hour, and two of them change."""
    from projections.incremental.spark.affected_keys import gathered
    from projections.incremental.spark.recompute_keys import affected, within

    window = WINDOWS[kind]
    start = NIGHT + timedelta(minutes=10)
    rows = [Row(n, "p", 1, start + timedelta(minutes=15 * n), None) for n in range(2_000)]
    table = frame_of(spark, rows, DDL)
    view = declared(spark, window.select("events", ("who",), ALL, ""), keys_of(window, ("who",)))
    changes = {"events": table.where("id BETWEEN 500 AND 501")}
    keys = gathered(spark, affected(view, changes, {"events": table}, {"events": table}), few_max)

    found = within(span_of(window), view, {"events": table}, keys)["events"].count()

    assert 2 <= found <= most
    assert within(None, view, {"events": table}, keys)["events"].count() == len(rows)
    written = table.withColumn("at", table["at"].cast("string"))
    assert within(span_of(window), view, {"events": written}, keys)["events"].count() == len(rows)
