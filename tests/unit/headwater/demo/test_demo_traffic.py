"""Traffic runs in a child that reports, stops when told, and does not fail in silence."""

from __future__ import annotations

import sys
import threading

import pytest

from headwater.demo.errors import TrafficError
from headwater.demo.globalshop import read_report
from headwater.demo.pgbench import _Reader
from headwater.demo.task import Task
from headwater.demo.traffic import ChildTraffic, Written

WAITS_FOR_END_OF_INPUT = """
import json, sys
sys.stdin.readline()
print(json.dumps({"changes": 3, "transactions": 1, "rolled_back": 0, "seconds": 1}), flush=True)
sys.stdin.read()
print(json.dumps({"changes": 8, "transactions": 2, "rolled_back": 1, "seconds": 2}), flush=True)
"""
FAILS = "raise ValueError('secret row value')"


def child(script: str, **options: object) -> ChildTraffic:
    return ChildTraffic([sys.executable, "-c", script], read_report, **options)


def test_stopping_returns_the_last_count():
    traffic = child(WAITS_FOR_END_OF_INPUT, wish={"rate": 1})

    assert traffic.running()
    assert traffic.stop() == Written(8, 2, 1, 2)
    assert not traffic.running()
    assert traffic.stop() == Written(8, 2, 1, 2)


def test_a_child_that_failed_is_reported_without_its_values():
    traffic = child(FAILS, wish={})

    with pytest.raises(TrafficError) as caught:
        traffic.stop()

    assert "ValueError" in caught.value.detail
    assert "secret" not in caught.value.detail


def test_pgbench_counts_four_changes_per_transaction_and_ends_exact():
    read = _Reader()

    assert read("progress: 1.0 s, 50.0 tps, lat 1.2 ms stddev 0.4, 0 failed") == Written(
        200, 50, 0, 1
    )
    assert read("progress: 3.0 s, 10.5 tps, lat 1.2 ms stddev 0.4, 0 failed") == Written(
        284, 71, 0, 3
    )
    assert read("duration: 4 s") == Written(284, 71, 0, 4)
    assert read("number of transactions actually processed: 73") == Written(292, 73, 0, 4)
    assert read("pgbench: error: connection lost") is None


def test_a_task_raises_in_the_thread_that_asks_for_its_result():
    def work() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Task(work).result()


def test_a_task_runs_beside_its_caller():
    go = threading.Event()
    task = Task(lambda: go.wait(10))

    assert task.running()
    go.set()
    assert task.result() is True
