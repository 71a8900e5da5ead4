"""A history depends on what is known and on nothing else, at every point of both times."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdc.schema_change.difference import ChangeKind, SchemaChange
from projections.definition.views import SchemaPolicy
from projections.planning.schema_policy import SchemaOutcome, decide
from projections.stores.delta.history.states import (
    HistoryChange,
    HistoryState,
    Rule,
    extend,
    follows,
    history,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LATEST = Rule(("status",))
SEQUENCED = Rule(("status",), by_sequence=True)
RULES = pytest.mark.parametrize("rule", [LATEST, SEQUENCED], ids=["by commit", "by sequence"])


@st.composite
def logs(draw: st.DrawFn) -> list[HistoryChange]:
    """Changes of one key in the order of the log, some of one transaction, some read late."""
    found: list[HistoryChange] = []
    at_us = 100
    for number in range(draw(st.integers(0, 9))):
        at_us += draw(st.sampled_from([0, 10, 10, 20]))
        seen_us = at_us + draw(st.sampled_from([0, 0, 0, 15]))
        row = {"status": draw(st.sampled_from("ab")), "note": number}
        sequence_us = seen_us - draw(st.sampled_from([1, 5, 30, -40]))
        if draw(st.integers(0, 4)) == 0:
            found.append(HistoryChange(8 * number + 8, at_us, None))
        else:
            found.append(HistoryChange(8 * number + 8, seen_us, row, sequence_us))
    return found


def was(
    log: Sequence[HistoryChange], rule: Rule, valid_us: int, recorded_us: int
) -> dict[str, Any] | None:
    """What held at one time by what was recorded at another, by the words of the module."""
    moments = [min(c.at_us for c in log[n:]) for n in range(len(log))]
    floor_us, found = 0, None
    best = (-1, -1)
    for change, at_us in zip(log, moments, strict=True):
        if at_us > recorded_us:
            break
        own = change.sequence_us if rule.by_sequence and change.row is not None else None
        since_us = max(at_us if own is None else own, floor_us)
        if change.row is None:
            floor_us = since_us
            if valid_us >= since_us:
                found, best = None, (since_us, change.version)
        elif valid_us >= since_us and (since_us, change.version) >= best:
            found, best = dict(change.row), (since_us, change.version)
    return found


def shown(states: Sequence[HistoryState], valid_us: int, recorded_us: int) -> list[Any]:
    """What a query of the table answers."""
    return [
        state.row["status"]
        for state in states
        if state.valid_from_us <= valid_us
        and (state.valid_to_us is None or valid_us < state.valid_to_us)
        and state.recorded_from_us <= recorded_us
        and (state.recorded_to_us is None or recorded_us < state.recorded_to_us)
    ]


@RULES
@given(log=logs())
def test_both_times_are_answered_as_the_log_has_them(rule: Rule, log: list[HistoryChange]) -> None:
    states = history(log, rule)

    points = sorted({time for c in log for time in (c.at_us, c.sequence_us or 0, c.at_us - 1)})
    for recorded_us in points:
        for valid_us in points:
            if not rule.by_sequence and valid_us > recorded_us:
                continue  # of what is to come a commit says nothing
            row = was(log, rule, valid_us, recorded_us)
            expected = [] if row is None else [row["status"]]
            assert expected == shown(states, valid_us, recorded_us)


@RULES
@given(log=logs(), random=st.randoms())
def test_order_and_copies_make_no_difference(
    rule: Rule, log: list[HistoryChange], random: Any
) -> None:
    shuffled = log + random.choices(log, k=3) if log else []
    random.shuffle(shuffled)

    assert history(log, rule) == history(shuffled, rule)


@RULES
@given(log=logs())
def test_states_have_an_identity_and_the_current_one_is_last(
    rule: Rule, log: list[HistoryChange]
) -> None:
    states = history(log, rule)

    assert len(states) == len({state.identity for state in states})
    assert [] == [state for state in states[:-1] if state.current]
    alive = bool(log) and log[-1].row is not None
    assert alive == bool(states and states[-1].current)
    for state in states:
        assert state.valid_to_us is None or state.valid_from_us < state.valid_to_us
        assert state.recorded_to_us is None or state.recorded_from_us < state.recorded_to_us


@given(log=logs())
def test_the_current_state_has_the_row_of_the_source(log: list[HistoryChange]) -> None:
    states = history(log, LATEST)

    current = [state.row for state in states if state.current]
    assert current == ([log[-1].row] if log and log[-1].row is not None else [])


@RULES
@given(log=logs(), cut=st.integers(0, 9))
def test_what_only_comes_after_is_joined_to_the_current_state(
    rule: Rule, log: list[HistoryChange], cut: int
) -> None:
    before, after = log[:cut], log[cut:]
    first = history(before, rule)
    current = replace(first[-1]) if first and first[-1].current else None
    recorded_us = max((change.at_us for change in before), default=0)
    last_us = recorded_us if current is None else current.last_at_us
    later = steps(after)
    recorded_after = all(at_us > recorded_us for at_us, _ in later[:1])
    if (rule.by_sequence or current is None) and not recorded_after:
        return
    if not follows(last_us, later, rule):
        return

    joined = [] if current is None else [current]
    for at_us, changes in later:
        extend(joined, changes[-1], at_us, rule)

    kept = first if current is None else first[:-1]
    whole = {state.identity: state for state in history(log, rule)}
    assert whole == {state.identity: state for state in [*kept, *joined]}


def test_a_value_that_is_no_number_is_as_it_was() -> None:
    rule = Rule(("weight",))
    nan = [HistoryChange(8 * n, 10 * n, {"weight": math.nan}) for n in (1, 2)]

    assert [(10, None)] == [(s.valid_from_us, s.valid_to_us) for s in history(nan, rule)]


def test_a_history_is_paused_by_another_key_and_follows_other_changes() -> None:
    rekeyed = SchemaChange(ChangeKind.KEY_CHANGED, "id", compatible=True)
    policy = SchemaPolicy.EVOLVE

    assert SchemaOutcome.FOLLOWED is decide(policy, [rekeyed], keyless=False).outcome
    assert SchemaOutcome.PAUSED is decide(policy, [rekeyed], keyless=False, history=True).outcome
