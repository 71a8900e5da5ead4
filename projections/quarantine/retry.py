"""Trying again what waits: the same way as records of a batch, for the keys that are due."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cdc.errors import CdcError
from projections.delivery import Delivery, Held, reducer
from projections.errors import ProjectionError, WaitsBehindError
from projections.quarantine.ledger import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from projections.decode import Reading, TopicReducer
    from projections.plan import ViewPlan
    from projections.quarantine.ledger import Case
    from projections.sinks.sink import Sink


def try_again(
    plan: ViewPlan,
    cases: Sequence[Case],
    sink: Callable[[], Sink],
    given_up: Mapping[str, int | None],
) -> list[Verdict]:
    """Applies what waits of some keys of a view; returns a verdict on each record.

    A key is tried as a whole: the newest of its changes counts, made whole by those before it. A
    record that still cannot be read keeps the others waiting, unless one of them came after it and
    needs nothing of it: a change that follows it in its partition, or a row that was read from the
    table later than the record was seen.

    Args:
        plan: The view.
        cases: All that waits of these keys, in the order of the log.
        sink: Opens the store.
        given_up: Keys of which something was given up; see `Held`.

    Raises:
        SinkError: The store refuses everything or cannot be reached; nothing is decided.
    """
    reducers = {topic: reducer([plan], topic) for topic in plan.topics}
    by_key: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_key[case.key].append(case)
    verdicts: list[Verdict] = []
    ready: list[Case] = []
    for of_key in by_key.values():
        readable, decided = _read(reducers, of_key)
        ready += readable
        verdicts += decided
    return verdicts + _apply(plan, ready, sink, given_up)


def _apply(
    plan: ViewPlan,
    cases: Sequence[Case],
    sink: Callable[[], Sink],
    given_up: Mapping[str, int | None],
) -> list[Verdict]:
    delivery = Delivery([plan], sink, {plan.name: Held(frozenset(), given_up)})
    by_topic: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        by_topic[case.topic].append(case)
    for topic, of_topic in by_topic.items():
        delivery.take(topic, [case.record for case in of_topic])
    delivery.finish()
    failed = {
        (each.topic, each.record.partition, each.record.offset): each for each in delivery.waiting
    }
    verdicts = []
    for case in cases:
        waiting = failed.get((case.topic, case.record.partition, case.record.offset))
        if waiting is None:
            verdicts.append(Verdict(case))
        else:
            verdicts.append(Verdict(case, waiting.error, version=waiting.version))
    return verdicts


def _read(
    reducers: Mapping[str, TopicReducer], cases: Iterable[Case]
) -> tuple[list[Case], list[Verdict]]:
    """Returns what of a key can be read, and what is decided without the store."""
    readings: dict[int, Reading] = {}
    unread: list[tuple[Case, CdcError | ProjectionError]] = []
    cases = list(cases)
    for case in cases:
        try:
            readings[id(case)] = _reading(reducers, case)
        except (CdcError, ProjectionError) as error:
            unread.append((case, error))
    whole = [(case, readings[id(case)]) for case in cases if id(case) in readings]
    whole = [(case, reading) for case, reading in whole if reading.whole]
    verdicts = []
    for case, cause in unread:
        if any(_after(later, reading, case) for later, reading in whole):
            verdicts.append(Verdict(case, superseded=True))
        else:
            verdicts.append(Verdict(case, cause))
    readable = [case for case in cases if id(case) in readings]
    if all(verdict.error is None for verdict in verdicts):
        return readable, verdicts
    return [], verdicts + [Verdict(case, _BEHIND) for case in readable]


def _reading(reducers: Mapping[str, TopicReducer], case: Case) -> Reading:
    reducer = reducers.get(case.topic)
    if reducer is None:
        raise WaitsBehindError("no view reads this topic any more", hint="drop it")
    return reducer.reading(case.record)


def _after(later: Case, reading: Reading, case: Case) -> bool:
    if reading.lsn >= case.seen_lsn > 0:
        return True
    return (
        reading.streamed
        and later.topic == case.topic
        and later.record.partition == case.record.partition
        and later.record.offset > case.record.offset
    )


_BEHIND = WaitsBehindError("waits behind an earlier change of its key")
