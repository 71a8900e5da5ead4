"""Retries quarantined records like a batch, for the keys that are due."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from cdc.errors import CdcError
from projections.changes.applier import TaskApplier, reducer
from projections.changes.quarantine.table import RetryResult
from projections.changes.record import key_text
from projections.changes.row_change import RowChange
from projections.changes.task_outcome import BlockedKeys
from projections.errors import NoStoredRowError, ProjectionError, WaitsBehindError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from foundation.errors import PlatformError
    from projections.changes.quarantine.table import RetriedRecord
    from projections.changes.reduced import RecordHeader
    from projections.changes.reducer import TopicReducer
    from projections.changes.sink import Sink
    from projections.planning.view_plan import ViewPlan


def retry_keys(
    plan: ViewPlan,
    cases: Sequence[RetriedRecord],
    sink: Callable[[], Sink],
    given_up: Mapping[str, int | None],
) -> list[RetryResult]:
    """Applies the quarantined records of some keys of a view; returns a verdict on each record.

    All records of a key are retried together: the newest change counts, completed by those before
    it. A record that still cannot be read blocks the others, unless a later one does not depend on
    it: a change that follows it in its partition, or a row read from the table after the record was
    first seen.

    Args:
        plan: The view.
        cases: All quarantined records of these keys, in the order of the log.
        sink: Opens the store.
        given_up: Keys with a discarded record; see `BlockedKeys`.

    Raises:
        SinkError: The store refuses everything or cannot be reached; nothing is decided.
    """
    reducers = {topic: reducer([plan], topic) for topic in plan.topics}
    by_key: dict[str, list[RetriedRecord]] = defaultdict(list)
    for case in cases:
        by_key[case.key].append(case)
    decided = {
        id(verdict.case): verdict
        for of_key in by_key.values()
        for verdict in _read(reducers, of_key, every=plan.history is not None)
    }
    # rows can move between keys, so a key's row depends on the order of the records of all keys
    waiting = [case for case in cases if id(case) not in decided or decided[id(case)].superseded]
    lending = _lending(plan, reducers, waiting, decided.keys(), sink, given_up)
    verdicts = _apply(plan, lending, decided.keys(), sink, given_up)
    if plan.history is not None:
        verdicts = _without_lost_values(reducers, verdicts)
    lending_ids = set(map(id, lending))
    return [
        *decided.values(),
        *verdicts,
        *(RetryResult(c) for c in waiting if id(c) not in lending_ids),
    ]


def _lending(  # noqa: PLR0913, PLR0917  # the records and what is known of them
    plan: ViewPlan,
    reducers: Mapping[str, TopicReducer],
    cases: Sequence[RetriedRecord],
    decided: Container[int],
    sink: Callable[[], Sink],
    given_up: Mapping[str, int | None],
) -> list[RetriedRecord]:
    """Excludes records that only supply values, if their keys have a newer change by now."""
    if plan.append_only or plan.events is not None or plan.history is not None:
        return list(cases)  # none of their records supplies values to another
    lenders = {
        id(case): reading
        for case in cases
        if case.version is None
        and id(case) not in decided
        and (reading := _reading(reducers, case)).key is not None
    }
    if not lenders:
        return list(cases)
    probes = [RowChange(reading.key or (), 0, None, 0) for reading in lenders.values()]
    stored = dict(zip(lenders, sink().versions(plan, probes), strict=True))

    def overtaken(case: RetriedRecord) -> bool:
        reading = lenders.get(id(case))
        if reading is None:
            return False
        key = key_text(case.topic, case.record)
        newest = given_up.get(key, 0)
        return newest is None or max(newest, stored[id(case)]) > reading.version

    return [case for case in cases if not overtaken(case)]


def _without_lost_values(
    reducers: Mapping[str, TopicReducer], verdicts: Sequence[RetryResult]
) -> list[RetryResult]:
    """Leaves out states of a history whose values are not available, once their row was read."""
    whole = [
        (verdict.case, reading)
        for verdict in verdicts
        if verdict.error is None and (reading := _reading(reducers, verdict.case)).whole
    ]
    return [
        RetryResult(verdict.case, superseded=True)
        if isinstance(verdict.error, NoStoredRowError)
        and any(
            later.key == verdict.case.key and _after(later, reading, verdict.case)
            for later, reading in whole
        )
        else verdict
        for verdict in verdicts
    ]


def _apply(
    plan: ViewPlan,
    cases: Sequence[RetriedRecord],
    superseded: Container[int],
    sink: Callable[[], Sink],
    given_up: Mapping[str, int | None],
) -> list[RetryResult]:
    delivery = TaskApplier([plan], sink, {plan.name: BlockedKeys(frozenset(), given_up)})
    for case in cases:
        if id(case) in superseded:
            delivery.pass_over(case.topic, case.record)
        else:
            delivery.take(case.topic, [case.record])
    delivery.finish()
    failed = {
        (each.topic, each.record.partition, each.record.offset): each for each in delivery.waiting
    }
    verdicts = []
    for case in (case for case in cases if id(case) not in superseded):
        waiting = failed.get((case.topic, case.record.partition, case.record.offset))
        if waiting is None:
            verdicts.append(RetryResult(case))
        else:
            verdicts.append(RetryResult(case, waiting.error, version=waiting.version))
    return verdicts


def _read(
    reducers: Mapping[str, TopicReducer], cases: Iterable[RetriedRecord], *, every: bool
) -> list[RetryResult]:
    """Returns the verdicts on a key's records that do not depend on the store."""
    readings: dict[int, RecordHeader] = {}
    unread: list[tuple[RetriedRecord, PlatformError]] = []
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
        # a history needs every change
        if not every and any(_after(later, reading, case) for later, reading in whole):
            verdicts.append(RetryResult(case, superseded=True))
        else:
            verdicts.append(RetryResult(case, cause))
    if all(verdict.superseded for verdict in verdicts):
        return verdicts
    return verdicts + [RetryResult(case, _BEHIND) for case in cases if id(case) in readings]


def _reading(reducers: Mapping[str, TopicReducer], case: RetriedRecord) -> RecordHeader:
    reducer = reducers.get(case.topic)
    if reducer is None:
        raise WaitsBehindError("no view reads the topic any more", hint="drop it")
    return reducer.reading(case.record)


def _after(later: RetriedRecord, reading: RecordHeader, case: RetriedRecord) -> bool:
    if reading.lsn >= case.seen_lsn > 0:
        return True
    return (
        reading.streamed
        and later.topic == case.topic
        and later.record.partition == case.record.partition
        and later.record.offset > case.record.offset
    )


_BEHIND = WaitsBehindError("waits behind an earlier change of its key")
