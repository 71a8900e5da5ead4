"""Episodes of alerts: whatever rows do, somebody is told once, and once that it is over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from projections.alerting.episode import Episode, EpisodeState, NotificationDelay, due_at, steps
from projections.definition.alert import Event

BEGIN = datetime(2026, 11, 21, tzinfo=UTC)
_samples = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30)
_patience = st.builds(
    NotificationDelay,
    st.integers(0, 4).map(lambda s: timedelta(seconds=s)),
    st.integers(0, 4).map(lambda s: timedelta(seconds=s)),
)


def told_to(
    times: list[datetime], met: list[bool], patience: NotificationDelay
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
    samples: list[tuple[int, bool]], patience: NotificationDelay
) -> None:
    times = [
        BEGIN + timedelta(seconds=seconds) for seconds in accumulate(each for each, _ in samples)
    ]
    known: dict[str, Episode] = {}
    told = []
    for now, (_, is_met) in zip(times, samples, strict=True):
        for step in steps(known, {"k": None} if is_met else {}, now, patience):
            if step.event is not None:
                told.append((now, step.event))
            known = {} if step.episode is None else {"k": step.episode}
    assert told_to(times, [is_met for _, is_met in samples], patience) == told


@given(_samples, _patience)
def test_looking_when_something_is_due_is_enough(
    samples: list[tuple[int, bool]], patience: NotificationDelay
) -> None:
    """Nothing is told between two changes of a row but at the moments that are named."""
    known: dict[str, Episode] = {}
    now = BEGIN
    for seconds, is_met in samples:
        now += timedelta(seconds=seconds)
        met = {"k": None} if is_met else {}
        for step in steps(known, met, now, patience):
            known = {} if step.episode is None else {"k": step.episode}
        due = due_at(list(known.values()), patience)
        if due is None:
            later = now + timedelta(days=1)
            assert not [step for step in steps(known, met, later, patience) if step.event]
        elif due > now:
            early = due - timedelta(microseconds=1)
            assert not [step for step in steps(known, met, early, patience) if step.event]


def test_rows_do_not_mind_each_other() -> None:
    patience = NotificationDelay(timedelta(0), timedelta(0))
    known = {"a": Episode(EpisodeState.OPEN, BEGIN), "b": Episode(EpisodeState.OPEN, BEGIN)}

    found = list(steps(known, {"b": None, "c": None}, BEGIN, patience))

    assert [("a", Event.RECOVERED), ("c", Event.OPENED)] == [(s.key, s.event) for s in found]


@given(_samples, _patience, st.integers(0, 20))
def test_a_row_that_is_too_old_is_forgotten_and_otherwise_is_as_any(
    samples: list[tuple[int, bool]], patience: NotificationDelay, recent_s: int
) -> None:
    """Until it is too old all is told as of a row that never is, and afterwards no recovery."""
    until = BEGIN + timedelta(seconds=recent_s)
    told: dict[datetime | None, list[tuple[datetime, Event]]] = {None: [], until: []}
    known: dict[datetime | None, dict[str, Episode]] = {None: {}, until: {}}
    now = BEGIN
    for seconds, is_met in samples:
        now += timedelta(seconds=seconds)
        for each, episodes in known.items():
            met = {"k": each} if is_met and (each is None or now < each) else {}
            for step in steps(episodes, met, now, patience):
                told[each] += [(now, step.event)] if step.event else []
                episodes.pop("k", None)
                episodes.update({"k": step.episode} if step.episode else {})
    assert [each for each in told[None] if each[0] < until] == [
        each for each in told[until] if each[0] < until
    ]
    for at, event in told[until]:
        if at >= until:  # it had gone before
            assert (Event.RECOVERED, True) == (event, patience.quiet > timedelta(0))
    last = known[until].get("k")
    assert last is None or last.ended is not None or now < until
