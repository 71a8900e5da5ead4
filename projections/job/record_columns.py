"""The columns of a batch of records, as the writer receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as fn

from cdc.change_event import EPOCH_HEADER
from projections.changes.record import OLD_KEY_HEADER

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def record_columns(records: DataFrame) -> DataFrame:
    """Selects the columns of a topic's records that `BatchWriter` reads.

    Args:
        records: The rows of Spark's Kafka reader, with headers.
    """
    old_key = fn.when(fn.size("headers") > 1, _header(OLD_KEY_HEADER))
    return records.select(
        "topic",
        "partition",
        "offset",
        "key",
        "value",
        epoch_column().alias("epoch"),
        old_key.alias("old_key"),
        fn.unix_micros("timestamp").alias("sent_at_us"),
    )


def epoch_column() -> Column:
    """Returns the column with the source's epoch from a record's header, as text."""
    first = fn.get("headers", fn.lit(0))
    # nearly every record has only this header, and searching all headers would double the cost
    epoch = fn.when(first["key"] == EPOCH_HEADER, first["value"]).otherwise(_header(EPOCH_HEADER))
    return epoch.cast("string")


def _header(name: str) -> Column:
    return fn.get(fn.filter("headers", lambda header: header["key"] == name), fn.lit(0))["value"]
