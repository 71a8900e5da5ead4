"""The writer's columns, whatever headers a record has and in whatever order."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from projections.job.record_columns import record_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

COLUMNS = (
    "topic string, partition int, offset long, timestamp timestamp, key binary, value binary,"
    " headers array<struct<key: string, value: binary>>"
)

EPOCH = ("headwater.epoch", b"3")
OTHER_EPOCH = ("headwater.epoch", b"4")
OLD_KEY = ("__debezium.oldkey", b'{"id":1}')
STRANGE = ("x", b"y")

HEADERS: list[list[tuple[str, bytes]] | None] = [
    [EPOCH],
    [EPOCH, OLD_KEY],
    [OLD_KEY, EPOCH],
    [STRANGE, OLD_KEY, STRANGE, EPOCH, OTHER_EPOCH],
    [STRANGE],
    [],
    None,
]


def first_named(headers: list[tuple[str, bytes]] | None, name: str) -> str | None:
    return next((value.decode() for key, value in headers or [] if key == name), None)


def test_the_first_header_of_a_name_counts_wherever_it_stands(spark: SparkSession) -> None:
    sent = datetime(2026, 1, 1)  # noqa: DTZ001  # Spark's own time
    rows = [("t", 0, n, sent, b"k", b"v", headers) for n, headers in enumerate(HEADERS)]

    records = record_columns(spark.createDataFrame(rows, COLUMNS)).orderBy("offset").collect()

    wanted = [[first_named(h, EPOCH[0]), first_named(h, OLD_KEY[0])] for h in HEADERS]
    assert wanted == [[each.epoch, each.old_key and each.old_key.decode()] for each in records]
