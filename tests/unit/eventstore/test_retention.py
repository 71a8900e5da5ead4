"""Rules of retention, without a database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from eventstore.errors import EventStoreError
from eventstore.upkeep.retention import RetentionReport, RetentionRule

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({"closing": frozenset({"order.closed"})}, id="closing without an age"),
        pytest.param({"compact_closed_after": DAY}, id="an age without closing"),
        pytest.param({"drop_archived_after": -DAY}, id="negative"),
        pytest.param({"category": "no category"}, id="no category"),
        pytest.param(
            {"closing": frozenset({"$snapshot"}), "compact_closed_after": DAY}, id="system type"
        ),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any]) -> None:
    with pytest.raises(EventStoreError):
        RetentionRule(**{"category": "order", **rule})


def test_a_rule_that_says_nothing_is_allowed_and_does_nothing() -> None:
    rule = RetentionRule("order")

    assert (None, None) == (rule.compact_closed_after, rule.drop_archived_after)


def test_reports_add_up() -> None:
    one = RetentionReport(streams=1, archived=2, dropped=3, droppable=4, kept=5)

    assert RetentionReport(2, 4, 6, 8, 10) == one + one
