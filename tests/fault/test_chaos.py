"""A component is killed while traffic runs; the views end equal to their source all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from projections.view import Store

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


# the job is killed amid views that are made from others, and amid windows, joins in time and a
# pattern; what carries the log serves any views
@pytest.mark.parametrize(
    ("component", "workload"),
    [
        *(("kafka", "pgbench"), ("connect", "pgbench")),
        *(("spark", "globalshop"), ("spark", "globalshop-live")),
    ],
    ids=["kafka", "connect", "spark", "spark-live"],
)
def test_a_killed_component_comes_back_and_nothing_is_lost_or_doubled(
    component: str, workload: str, tmp_path: Path
) -> None:
    words = ("--chaos", component, "--workload", workload, "--seconds", "12", "--scale", "0.1")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headwater",
            "demo",
            "--json",
            "--home",
            str(tmp_path / "h"),
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["verified"]
    assert component == found["recovery"]["killed"]
    assert found["changes"] > 500
    assert all(v["missing"] == v["extra"] == v["different"] == 0 for v in found["views"])
    if workload == "pgbench":
        _sums_hold(found)


def _sums_hold(found: dict[str, Any]) -> None:
    """What TPC-B keeps equal is equal in the source and in every store."""
    assert {v["view"] for v in found["views"]} == {"accounts", "branches", "tellers", "history"}
    assert {each["place"] for each in found["invariants"]} == {"source", *Store}
    assert all(each["holds"] for each in found["invariants"])
    assert 1 == len({tuple(each["values"].values()) for each in found["invariants"]})
