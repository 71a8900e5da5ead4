from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cdc.lsn import Lsn
from cdc.postgres.pressure import Level, Pressure, WalSample
from cdc.postgres.slot import SlotStatus

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
MIB = 1024 * 1024


def pressure(
    *, seconds: float = 10, grown: int = 10 * MIB, moves: bool = False, **changed: Any
) -> Pressure:
    about = {name: changed.pop(name) for name in ("keep_bytes", "idle_s") if name in changed}
    disk_bytes = changed.pop("disk_bytes", None)
    slot = SlotStatus(
        "s", changed.pop("active", True), None, "d", "pgoutput", Lsn(1), Lsn(2),
        changed.pop("wal_status", "reserved"), 0, **changed,
    )  # fmt: skip
    first = WalSample(NOW - timedelta(seconds=seconds), Lsn(100))
    last = WalSample(NOW, Lsn(100 + grown))
    return Pressure(slot, first, last, moves, disk_bytes=disk_bytes, **about)


def test_the_rate_is_of_the_servers_log_over_the_servers_time():
    assert MIB == pressure().bytes_per_s
    assert pressure(seconds=0).bytes_per_s == 0
    assert pressure(grown=0).disk_full_in_s is None


def test_what_is_left_lasts_as_long_as_the_rate_says():
    found = pressure(disk_bytes=3600 * MIB, safe_wal_bytes=60 * MIB)

    assert (3600, 60) == (found.disk_full_in_s, found.given_up_in_s)


def test_a_slot_without_a_reader_is_given_up_by_its_age_as_well():
    found = pressure(
        active=False,
        idle_s=600.0,
        inactive_since=NOW - timedelta(seconds=540),
        safe_wal_bytes=3600 * MIB,
    )

    assert found.given_up_in_s == 60


@pytest.mark.parametrize(
    ("level", "found"),
    [
        (Level.OK, pressure()),
        (Level.OK, pressure(moves=True, disk_bytes=1)),
        (Level.WARN, pressure(moves=True, wal_status="extended")),
        (Level.WARN, pressure(active=False)),
        (Level.WARN, pressure(disk_bytes=2 * 3600 * MIB)),
        (Level.OK, pressure(disk_bytes=25 * 3600 * MIB)),
        (Level.DANGER, pressure(disk_bytes=3599 * MIB)),
        (Level.DANGER, pressure(safe_wal_bytes=3599 * MIB)),
        (Level.DANGER, pressure(wal_status="unreserved", moves=True)),
        (Level.DANGER, pressure(wal_status="lost")),
        (Level.DANGER, pressure(invalidation="idle_timeout")),
    ],
)
def test_a_forecast_counts_while_the_reader_stands_still(level, found):
    assert level is found.level
