"""States made of columns are those that the rules make of each key by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.planning.view_plan import HistoryPlan
from projections.stores.delta.history.arrow import HistoryForm
from projections.stores.delta.history.columnar import known_changes, states_of
from projections.stores.delta.history.states import HistoryChange, HistoryState, history
from tests.fix_history import prices

SCHEMA = TableSchema(
    TableName("public", "prices"),
    (
        Column("id", ColumnKind.INTEGER, "integer", nullable=False),
        Column("price", ColumnKind.NUMERIC, "numeric"),
        Column("rate", ColumnKind.FLOAT, "double precision"),
        Column("note", ColumnKind.TEXT, "text"),
        Column("since", ColumnKind.TIMESTAMPTZ, "timestamp with time zone"),
    ),
    ("id",),
)
PLAN = replace(prices(), schema=SCHEMA, history=HistoryPlan(("price", "rate", "note")))
FORM = HistoryForm(PLAN)

ROWS = st.fixed_dictionaries(
    {
        "price": st.sampled_from([None, Decimal(1), Decimal("1.0"), Decimal("2.50")]),
        "rate": st.sampled_from([None, 0.0, -0.0, 1.5, float("nan")]),
        "note": st.sampled_from([None, "", "a"]),
        "since": st.just(datetime(2026, 1, 1, tzinfo=UTC)),
    }
)
CHANGES = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.one_of(st.none(), ROWS)),
    max_size=14,
)


def applied(changes: list[HistoryChange]) -> list[HistoryChange]:
    """What live delivery keeps of changes that come one by one."""
    kept: dict[int, int] = {}
    found = []
    for change in changes:
        if change.version not in kept or kept[change.version] > change.at_us:
            kept[change.version] = change.at_us
            found.append(change)
    return found


def comparable(states: list[tuple[Any, HistoryState]]) -> list[str]:
    return sorted(repr((place, state)) for place, state in states)


@given(given=CHANGES)
@example(given=[])
@example(given=[(1, 2, 5, None), (1, 3, 1, None)])
def test_columns_come_to_the_states_of_the_rules(given: list[tuple[Any, ...]]) -> None:
    made = [
        ((key,), HistoryChange(version, at, None if row is None else {"id": key, **row}))
        for key, version, at, row in given
    ]
    of_key = {
        place: applied([change for each, change in made if each == place]) for place, _ in made
    }
    expected = [
        (place, state) for place, own in of_key.items() for state in history(own, FORM.rule)
    ]

    keys, versions, at_us = (
        np.array([each[n] for each in given], np.int64).reshape(-1) for n in range(3)
    )
    order = known_changes(keys, versions, at_us)
    table = FORM.changes_table([made[place] for place in order.tolist()], 1)
    states = states_of(FORM, table, keys[order])

    assert sum(map(len, of_key.values())) == len(order)
    assert comparable(FORM.states(FORM.states_table(expected))) == comparable(FORM.states(states))
    assert [s.current for _, s in FORM.states(states)] == states["is_current"].to_pylist()
