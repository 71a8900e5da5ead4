"""Episodes of alerts: whatever rows do, somebody is told once, and once that it is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from projections.alert import Event
from projections.alerting.episode import Episode, Patience, State, due_at, steps

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)
_samples = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30)
_patience = st.builds(
    Patience,
    st.integers(0, 4).map(lambda s: timedelta(seconds=s)),
    st.integers(0, 4).map(lambda s: timedelta(seconds=s)),
)


def told_to(
    times: list[datetime], met: list[bool], patience: Patience
) -> list[tuple[datetime, Event]]:
    """What somebody should be told: looked for in all that was seen, and no machine."""
    told: list[tuple[datetime, Event]] = []
    wanted, wait = True, patience.hold
    begun: datetime | None = None
    for at, is_met in zip(times, met, strict=True):
        if is_met is not wanted:
            begun = None
            continue
        begun = begun or at
        if at - begun >= wait:
            told.append((at, Event.OPENED if wanted else Event.RECOVERED))
            begun = None
            wanted = not wanted
            wait = patience.hold if wanted else patience.quiet
    return told


@given(_samples, _patience)
def test_of_a_row_is_told_what_its_past_says(
    samples: list[tuple[int, bool]], patience: Patience
) -> None:
    times = [
        BEGIN + timedelta(seconds=seconds) for seconds in accumulate(each for each, _ in samples)
    ]
    known: dict[str, Episode] = {}
    told = []
    for now, (_, is_met) in zip(times, samples, strict=True):
        for step in steps(known, {"k"} if is_met else set(), now, patience):
            if step.told is not None:
                told.append((now, step.told))
            known = {} if step.episode is None else {"k": step.episode}
    assert told_to(times, [is_met for _, is_met in samples], patience) == told


@given(_samples, _patience)
def test_looking_when_something_is_due_is_enough(
    samples: list[tuple[int, bool]], patience: Patience
) -> None:
    """Nothing is told between two changes of a row but at the moments that are named."""
    known: dict[str, Episode] = {}
    now = BEGIN
    for seconds, is_met in samples:
        now += timedelta(seconds=seconds)
        met = {"k"} if is_met else set()
        for step in steps(known, met, now, patience):
            known = {} if step.episode is None else {"k": step.episode}
        due = due_at(list(known.values()), patience)
        if due is None:
            later = now + timedelta(days=1)
            assert not [step for step in steps(known, met, later, patience) if step.told]
        elif due > now:
            early = due - timedelta(microseconds=1)
            assert not [step for step in steps(known, met, early, patience) if step.told]


def test_rows_do_not_mind_each_other() -> None:
    patience = Patience(timedelta(0), timedelta(0))
    known = {"a": Episode(State.OPEN, BEGIN), "b": Episode(State.OPEN, BEGIN)}

    found = list(steps(known, {"b", "c"}, BEGIN, patience))

    assert [("a", Event.RECOVERED), ("c", Event.OPENED)] == [(s.key, s.told) for s in found]
