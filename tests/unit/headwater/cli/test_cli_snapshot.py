"""How the reads of tables are shown, and how their keys are written on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from cdc.lsn import Lsn
from cdc.snapshot.reads import Read
from cdc.snapshot.report import of_read
from cdc.table import TableName
from headwater.cli.snapshot import key_of, row_of

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)


def a_read(state: str, rows: int, expected: int | None, resumed: int = 0) -> Read:
    ended = BEGAN + timedelta(seconds=50) if state == "done" else None
    return Read(
        id=7,
        source="shop",
        epoch=1,
        table=TableName("public", "orders"),
        topic="shop.public.orders",
        predicate=None,
        keys=None,
        state=state,
        read_lsn=Lsn(7),
        rows_expected=expected,
        rows_read=rows,
        progress=None,
        end_offsets=None,
        failure=None,
        asked_at=BEGAN,
        begun_at=BEGAN - timedelta(hours=1) if resumed else BEGAN,
        ended_at=ended,
        resumed_at=BEGAN,
        rows_resumed=resumed,
    )


@pytest.mark.parametrize(
    ("read", "shown"),
    [
        (a_read("reading", 250_000, 1_000_000), ("250,000 of 1,000,000", "25 %", "2,500", "5 min")),
        # after a pause the rate is that of the reader which is at it now
        (a_read("reading", 250_000, 1_000_000, 150_000), (None, "25 %", "1,000", "12 min")),
        (a_read("reading", 1_100, 1_000), ("1,100 of 1,000", "99.9 %", "11", "0 s")),
        (a_read("reading", 10, None), ("10 of ?", None, "0", None)),
        (a_read("done", 1_000, 1_000), ("1,000", "100 %", "20", None)),
    ],
)
def test_a_read_is_shown_with_its_part_its_rate_and_the_time_that_is_left(
    read: Read, shown: tuple[str | None, ...]
) -> None:
    row = row_of(of_read(read, BEGAN + timedelta(seconds=100)))

    found = tuple(row[name] for name in ("rows", "percent", "rows/s", "left"))
    assert tuple(had or wanted for had, wanted in zip(shown, found, strict=True)) == found


def test_a_key_is_a_value_or_json_without_losing_a_digit() -> None:
    long = "123456789012345678901234567890.50"

    assert "42" == key_of("42")
    assert {"tenant": "1", "amount": long} == key_of('{"tenant": 1, "amount": ' + long + "}")
    assert "{not json" == key_of("{not json")
