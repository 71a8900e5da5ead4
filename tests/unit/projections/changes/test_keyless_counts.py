"""What a view of a table without a key counts of its records."""

from __future__ import annotations

import pytest

from projections.changes.applier import TaskApplier
from projections.errors import KeylessChangeError
from tests.fix_log import numbered
from tests.support.keyless_logs import PLAN, TOPIC, record
from tests.support.memory_sink import MemorySink


@pytest.mark.parametrize("op", ["u", "d"])
def test_a_change_of_a_row_without_a_key_counts_as_quarantined_only(op: str) -> None:
    row = {"code": 1, "note": "n"}
    changed = record(op, 0x1008, row if op == "u" else None)
    sink = MemorySink()
    delivery = TaskApplier([PLAN], lambda: sink)

    delivery.take(TOPIC, numbered([record("c", 0x1000, row), changed]))
    delivery.finish()

    count = delivery.counts[PLAN.name]
    assert [KeylessChangeError] == [type(each.error) for each in delivery.waiting]
    assert (2, 1, 1, 0) == (count.records, count.applied, count.quarantined, count.filtered)
