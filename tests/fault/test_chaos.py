"""Components are killed while traffic runs; the views end equal to their source all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.views import Store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.soak(minutes=4),
    pytest.mark.timeout(1200),
]


KILLED = ("kafka", "connect", "spark")


def test_killed_components_come_back_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """One after the other, whether those before are back or not.

    The job is killed amid windows, joins in time and a pattern where the live page is tested, and
    amid views that are made from others where one is rebuilt.
    """
    words = [word for component in KILLED for word in ("--chaos", component)]
    command = [sys.executable, "-m", "headwater", "demo", "--json", "--home", str(tmp_path / "h")]
    done = subprocess.run(
        [*command, *words, "--workload", "pgbench", "--seconds", "15"],
        capture_output=True,
        text=True,
        timeout=1080,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["verified"]
    assert [*KILLED] == [recovery["killed"] for recovery in found["recoveries"]]
    assert found["changes"] > 500
    assert all(v["missing"] == v["extra"] == v["different"] == 0 for v in found["views"])
    _sums_hold(found)


def _sums_hold(found: dict[str, Any]) -> None:
    """What TPC-B keeps equal is equal in the source and in every store."""
    assert {v["view"] for v in found["views"]} == {"accounts", "branches", "tellers", "history"}
    assert {each["place"] for each in found["invariants"]} == {"source", *Store}
    assert all(each["holds"] for each in found["invariants"])
    assert 1 == len({tuple(each["values"].values()) for each in found["invariants"]})
