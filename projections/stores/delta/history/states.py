"""The states of a key's history, computed from its known changes.

A history has two times. *Valid* is when a state held: the commit of the change, or a column of the
row (`sequence_by`). *Recorded* is when the source committed it. Changes are recorded in the order
of the log; a row's own time may place one before others.

The states depend only on the set of known changes, not on the order or number of their arrivals.
Three rules determine them:

- A change that leaves all tracked columns as they are begins no state; its values replace those of
  the state that it falls into.
- Among changes with one time, the last in the log counts. A value that one transaction sets and
  resets never existed.
- No change begins later than the one after it in the log. A row of a snapshot counts from the
  moment of the read, which may be after the next change in the log: that one is more precise.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


# one is made of every change
class HistoryChange(msgspec.Struct, frozen=True, gc=False):
    """A change of one key, as its history uses it.

    Attributes:
        version: Its log position.
        at_us: Time of its commit, or of the read; microseconds since 1970, UTC.
        row: Values by column; None for a delete.
        sequence_us: The row's own time; None for a delete, or if the commit time counts.
        inserted: Whether the log shows that there was no earlier row (an insert) or that there was
            one (an update, a delete); None if it does not show that.
    """

    version: int
    at_us: int
    row: Mapping[str, object] | None
    sequence_us: int | None = None
    inserted: bool | None = None


class HistoryState(msgspec.Struct, gc=False):
    """A state of a key with its periods of validity and of record; times in microseconds.

    Attributes:
        row: Values by column.
        valid_from_us: Start of validity.
        recorded_from_us: When it became known.
        version: Log position of the change that began the state.
        recorded_version: Log position of the change that determined its period.
        last_version: Log position of the change with its values.
        last_at_us: Time of that change.
        valid_to_us: End of validity; None while it is valid.
        recorded_to_us: When it was superseded; None if it was not.
    """

    row: Mapping[str, object]
    valid_from_us: int
    recorded_from_us: int
    version: int
    recorded_version: int
    last_version: int
    last_at_us: int
    valid_to_us: int | None = None
    recorded_to_us: int | None = None

    @property
    def current(self) -> bool:
        """Returns whether it is current."""
        return self.valid_to_us is None and self.recorded_to_us is None

    @property
    def identity(self) -> tuple[int, int]:
        """Returns what identifies the state among those of its key."""
        return self.version, self.recorded_version


Step = tuple[int, list[HistoryChange]]
"""Changes of one key with one record time, in log order, and that time."""


class Rule(msgspec.Struct, frozen=True):
    """How changes become states.

    Attributes:
        tracked: Columns whose change begins a new state.
        by_sequence: Whether rows have a time of their own. A delete has none and counts from its
            commit. It ends everything recorded before it, and nothing recorded later reaches back
            before it.
    """

    tracked: tuple[str, ...]
    by_sequence: bool = False

    def same(self, one: Mapping[str, object], other: Mapping[str, object]) -> bool:
        """Returns whether two rows form one state."""
        for name in self.tracked:
            a, b = one[name], other[name]
            if a != b and (a == a or b == b):  # noqa: PLR0124  # NaN is as it was
                return False
        return True

    def since_us(self, change: HistoryChange, at_us: int) -> int:
        """Returns the time from which a change counts, given its record time."""
        own = change.sequence_us if self.by_sequence else None
        return at_us if own is None else own


def history(changes: Iterable[HistoryChange], rule: Rule) -> list[HistoryState]:
    """Returns all states of one key; a current one comes last.

    Args:
        changes: All known changes of the key, in any order, possibly repeated.
        rule: How changes become states.
    """
    states: list[HistoryState] = []
    timeline = _Timeline(rule)
    for at_us, then in steps(changes):
        if not rule.by_sequence:
            extend(states, then[-1], at_us, rule)
            continue
        if len(then) == 1 and timeline.append(then[0], at_us):
            extend(states, then[0], at_us, rule)
            continue
        for change in then:
            timeline.place(change, at_us)
        _believe(states, timeline.states(), at_us, then[-1].version)
    return states


def steps(changes: Iterable[HistoryChange]) -> list[Step]:
    """Groups changes of one key by record time, in log order.

    Of repeated changes, the first one counts.
    """
    ordered = sorted(changes, key=lambda change: (change.version, change.at_us))
    recorded: list[tuple[int, HistoryChange]] = []
    at_us = ordered[-1].at_us if ordered else 0
    for index in range(len(ordered) - 1, -1, -1):
        change = ordered[index]
        if index and ordered[index - 1].version == change.version:
            continue
        at_us = min(at_us, change.at_us)
        recorded.append((at_us, change))
    recorded.reverse()
    return [
        (at, [c for _, c in group]) for at, group in groupby(recorded, key=lambda pair: pair[0])
    ]


def follows(after_us: int, later: Sequence[Step], rule: Rule) -> bool:
    """Returns whether changes follow everything known of their key, in both times.

    The current state of the key is then sufficient.

    Args:
        after_us: Time before which everything known began and was recorded.
        later: Newer changes.
        rule: How changes become states.
    """
    for at_us, changes in later:
        if rule.by_sequence and len(changes) > 1:
            return False
        since_us = rule.since_us(changes[-1], at_us)
        if since_us <= after_us:
            return False
        after_us = since_us
    return True


def extend(states: list[HistoryState], change: HistoryChange, at_us: int, rule: Rule) -> None:
    """Adds a change that follows all others in both times.

    Args:
        states: The known states; a current one comes last. The list is modified.
        change: The change.
        at_us: Its record time.
        rule: How changes become states.
    """
    current = states[-1] if states and states[-1].current else None
    since_us = rule.since_us(change, at_us)
    if current is not None:
        if change.row is not None and rule.same(current.row, change.row):
            current.row = change.row
            current.last_version, current.last_at_us = change.version, since_us
            return
        if rule.by_sequence:
            # the state was recorded as open-ended, and must stay readable as such
            ended = replace(
                current,
                valid_to_us=since_us,
                recorded_from_us=at_us,
                recorded_version=change.version,
            )
            current.recorded_to_us = at_us
            states.append(ended)
        else:
            current.valid_to_us = since_us
    if change.row is not None:
        states.append(_state(change, since_us, at_us, change.version))


def _state(change: HistoryChange, since_us: int, at_us: int, recorded_version: int) -> HistoryState:
    assert change.row is not None  # noqa: S101  # a delete is no state
    return HistoryState(
        change.row, since_us, at_us, change.version, recorded_version, change.version, since_us
    )


class _Timeline:
    """The known states of one key, by the start of their validity."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._known: list[tuple[int, HistoryChange]] = []
        self._deleted_us: int | None = None

    def append(self, change: HistoryChange, at_us: int) -> bool:
        """Adds a change if it follows all others; returns whether it did."""
        since_us = self._rule.since_us(change, at_us)
        if self._known and since_us <= self._known[-1][0]:
            return False
        self._known.append((since_us, change))
        if change.row is None:
            self._deleted_us = since_us
        return True

    def place(self, change: HistoryChange, at_us: int) -> None:
        """Inserts a change in order."""
        since_us = self._rule.since_us(change, at_us)
        if self._deleted_us is not None:
            since_us = max(since_us, self._deleted_us)
        index = bisect_left(self._known, since_us, key=lambda pair: pair[0])
        if change.row is None:
            self._deleted_us = since_us
            self._known[index:] = [(since_us, change)]
        elif index < len(self._known) and self._known[index][0] == since_us:
            self._known[index] = since_us, change  # the last one in the log counts
        else:
            self._known.insert(index, (since_us, change))

    def states(self) -> list[HistoryState]:
        """Returns the states by present knowledge, as if all had been recorded at once."""
        states: list[HistoryState] = []
        for since_us, change in self._known:
            last = states[-1] if states and states[-1].current else None
            if last is not None:
                if change.row is not None and self._rule.same(last.row, change.row):
                    last.row = change.row
                    last.last_version, last.last_at_us = change.version, since_us
                    continue
                last.valid_to_us = since_us
            if change.row is not None:
                states.append(_state(change, since_us, 0, 0))
        return states


def _believe(
    states: list[HistoryState], new_states: list[HistoryState], at_us: int, version: int
) -> None:
    """Replaces the recorded states by new ones, from a record time on."""
    before = {
        (state.version, state.valid_from_us, state.valid_to_us): state
        for state in states
        if state.recorded_to_us is None
    }
    now = []
    for each in new_states:
        same = before.pop((each.version, each.valid_from_us, each.valid_to_us), None)
        if same is None:
            each.recorded_from_us, each.recorded_version = at_us, version
            now.append(each)
        else:
            same.row = each.row
            same.last_version, same.last_at_us = each.last_version, each.last_at_us
            now.append(same)
    for state in before.values():
        state.recorded_to_us = at_us
    states[:] = [state for state in states if state.recorded_to_us is not None] + now
