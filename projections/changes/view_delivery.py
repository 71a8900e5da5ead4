"""ViewDelivery: one view's part of a write, from reduced records to the store."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from projections.changes.record import RecordFailure, canonical, key_text
from projections.changes.reduced import missing_values
from projections.changes.row_change import Applied, RowChange
from projections.changes.task_outcome import BlockedKeys, UnappliedRecord
from projections.definition.expectations.expectation import OnFail
from projections.definition.views import ARCHIVED_EVENTS, ChangeTime
from projections.errors import (
    EventUnreadableError,
    KeylessChangeError,
    RowUnexpectedError,
    ViewHaltedError,
    WaitsBehindError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from foundation.errors import PlatformError
    from projections.changes.raw_change import RawChange
    from projections.changes.reduced import Reduced
    from projections.changes.sink import Sink
    from projections.changes.task_outcome import TaskOutcome
    from projections.definition.expectations.expectation import Expectation
    from projections.planning.view_plan import EventsPlan, ViewPlan


class ViewDelivery:
    """One view's part of a write."""

    def __init__(self, task: TaskOutcome, plan: ViewPlan, topic: str, reduced: Reduced) -> None:
        self._task = task
        self._plan = plan
        self._topic = topic
        self._reduced = reduced
        self._names = None if plan.events is None else plan.events.form.names
        self._failures = [failure for failure in reduced.failures if self._mine(failure.kind)]
        self._behind: list[RecordFailure] = []

    def run(self) -> None:
        """Writes the changes, counts them, and quarantines those that must wait.

        Raises:
            SinkError: The store refuses everything or cannot be reached.
            ViewHaltedError: The view has to be paused.
        """
        plan, reduced = self._plan, self._reduced
        changes = self._of_view()
        sink = self._task.open()
        if reduced.truncated:
            sink.sweep(plan, reduced.truncated)
            self._task.truncated[plan.name] = reduced.truncated
        applied = Applied()
        below = self._inspected(self._ready(reduced.below), passing=True)
        ready = self._inspected(self._ready(changes))
        for part in (below, ready):
            if part:
                applied += sink.apply(plan, part)
        if plan.inserted_at and reduced.begun:
            sink.apply(plan, reduced.begun)  # their records count as filtered
        for refused in applied.refused:
            self._fail(refused.change, refused.error)
        self._count(self._to_quarantine(sink), applied, ready)

    def _mine(self, kind: str | None) -> bool:
        """Returns whether the view may have an event of this type; always, without a type."""
        return self._names is None or kind is None or kind in self._names

    def _of_view(self) -> list[RowChange]:
        changes, events = self._timed(), self._plan.events
        if events is None:
            return changes
        try:
            return of_events(events, changes)
        except EventUnreadableError:
            readable: list[RowChange] = []
        for change in changes:
            try:
                readable += of_events(events, [change])
            except EventUnreadableError as error:
                self._fail(change, error)
        return readable

    def _timed(self) -> list[RowChange]:
        """Returns the changes with the times that the view shows."""
        changes, times = self._reduced.changes, {which for _, which in self._plan.times}
        if ChangeTime.BROKER in times:
            sent = (raw.first_sent_at_us for raw in self._reduced.raws)
            pairs = zip(changes, sent, strict=True)
            changes = [structs.replace(change, sent_at_us=at_us) for change, at_us in pairs]
        if ChangeTime.COMMIT in times and self._topic.endswith(str(ARCHIVED_EVENTS)):
            # this is the time when the event was archived, not when it was appended
            changes = [structs.replace(change, committed_at_us=0) for change in changes]
        return changes

    def _inspected(self, changes: list[RowChange], *, passing: bool = False) -> list[RowChange]:
        """Replaces each row that the view does not admit by a delete.

        The delete has the row's own version, so every store, every replay and every order of
        batches ends in the same state: the view has the newest row of a key, or none.

        Args:
            changes: Changes that are ready to be written.
            passing: Whether other changes in the same write replace these rows.
        """
        inspection = self._task.inspection(self._plan)
        if inspection is None:
            return changes
        admitted: list[RowChange] = []
        for change in changes:
            row = change.row
            if row is not None and change.unchanged_columns:
                if not inspection.columns.isdisjoint(change.unchanged_columns):
                    # the deciding value is missing: the row is read again, as for any such value
                    self._fail(change, missing_values(self._plan.schema, change.unchanged_columns))
                    continue
                row = {
                    name: value
                    for name, value in row.items()
                    if name not in change.unchanged_columns
                }
            unmet = None if row is None else inspection.unmet(row, counts=not passing)
            admitted += (
                [change] if unmet is None else self._withheld(change, unmet, passing=passing)
            )
        return admitted

    def _withheld(self, change: RowChange, unmet: Expectation, *, passing: bool) -> list[RowChange]:
        version = change.version
        if unmet.on_fail is OnFail.FAIL and not passing and not self._outdated(change):
            raise self._halted(change, unmet)
        if unmet.on_fail is OnFail.QUARANTINE and not passing:
            self._fail(
                change,
                RowUnexpectedError(
                    f"a row of view {self._plan.name} does not meet an expectation",
                    detail=f"expectation {unmet.name}",
                    hint="correct the row; or change the expectation, and retry",
                ),
            )
            # one less, so that the row itself can still be applied by a retry
            version -= 1
        if self._plan.append_only:
            return []  # this key had no row before
        return [
            RowChange(
                change.key,
                version,
                None,
                change.committed_at_us,
                read_at_us=change.read_at_us,
                begun=change.begun,
                begun_at_us=change.begun_at_us,
            )
        ]

    def _outdated(self, change: RowChange) -> bool:
        if self._plan.history is not None:
            return False
        probe = RowChange(change.key, 0, None, 0)
        return self._task.open().versions(self._plan, [probe])[0] >= change.version

    def _halted(self, change: RowChange, unmet: Expectation) -> ViewHaltedError:
        self._task.halted = name = self._plan.name
        own = self._sources[change.key, change.version].own
        return ViewHaltedError(
            f"view {name} is paused: a row does not meet an expectation",
            detail=f"expectation {unmet.name}; topic {self._topic}, partition {own.partition},"
            f" offset {own.offset}",
            hint=(
                f"correct the row or change the expectation, then run headwater view resume {name}"
            ),
        )

    def _ready(self, changes: list[RowChange]) -> list[RowChange]:
        """Leaves out changes that must be quarantined; nearly always there are none."""
        held, unread = self._task.held(self._plan), self._unread()
        keys = held.keys | unread.keys() if unread else held.keys
        if not keys and not held.given_up:
            return changes
        ready = []
        for change in changes:
            raw = self._sources[change.key, change.version]
            own = raw.own
            key = key_text(self._topic, own)
            if key in held.keys or (own.partition, own.offset) > unread.get(key, _NO_PLACE):
                self._behind.append(_failure(raw, change, _BEHIND))
            elif change.unchanged_columns and self._base_unavailable(
                change, raw.base, key, held, keys
            ):
                self._fail(change, missing_values(self._plan.schema, change.unchanged_columns))
            else:
                ready.append(change)
        return ready

    def _unread(self) -> dict[str, tuple[int, int]]:
        """Returns the first unreadable record of each key; earlier ones of the key are applied."""
        first: dict[str, tuple[int, int]] = {}
        for failure in self._failures:
            own = failure.records[-1]
            key, place = key_text(self._topic, own), (own.partition, own.offset)
            first[key] = min(place, first.get(key, place))
        return first

    def _base_unavailable(
        self,
        change: RowChange,
        base: bytes | None,
        key: str,
        held: BlockedKeys,
        keys: frozenset[str],
    ) -> bool:
        """Returns whether the row with the unchanged values is quarantined or was discarded."""
        base_key = key if base is None else (canonical(base) or base).decode()
        if base is not None and base_key in keys:
            return True
        if base_key not in held.given_up:
            return False
        given_up = held.given_up[base_key]
        probe = RowChange(change.base or change.key, 0, None, 0)
        (stored,) = self._task.open().versions(self._plan, [probe])
        return given_up is None or stored < given_up

    @cached_property
    def _sources(self) -> Mapping[tuple[tuple[object, ...], int], Any]:
        # needed only for changes that must be quarantined
        return self._reduced.sources()

    def _fail(self, change: RowChange, error: PlatformError) -> None:
        raw = self._sources[change.key, change.version]
        self._failures.append(_failure(raw, change, error))

    def _to_quarantine(self, sink: Sink) -> list[UnappliedRecord]:
        """Returns the records to quarantine: failures without a newer change in the store.

        It writes what the others report of their rows' inserts.
        """
        failures = self._failures + self._behind
        if not failures:
            return []
        # for a history every change counts, even if a newer one follows
        whole = self._plan.history is None
        known = [failure for failure in failures if whole and failure.key is not None]
        probes = [RowChange(failure.key or (), 0, None, 0) for failure in known]
        stored = sink.versions(self._plan, probes) if probes else []
        stored_versions = {
            id(failure): version for failure, version in zip(known, stored, strict=True)
        }
        waiting: dict[tuple[int, int], UnappliedRecord] = {}
        begun: list[RowChange] = []
        for failure in failures:
            if (
                failure.version is not None
                and stored_versions.get(id(failure), 0) >= failure.version
            ):
                if failure.begun:
                    begun.append(_insert_only(failure))
                continue
            *others, own = failure.records
            key = key_text(self._topic, own)
            for record in others:
                place = record.partition, record.offset
                each = UnappliedRecord(self._plan.name, key, self._topic, record, None, _BEHIND)
                waiting.setdefault(place, each)
            place = own.partition, own.offset
            waiting[place] = UnappliedRecord(
                self._plan.name, key, self._topic, own, failure.version, failure.error
            )
        if begun and self._plan.inserted_at:
            sink.apply(self._plan, begun)
        self._task.quarantine(list(waiting.values()))
        return list(waiting.values())

    def _count(
        self, waiting: Sequence[UnappliedRecord], applied: Applied, changes: Sequence[RowChange]
    ) -> None:
        reduced, count = self._reduced, self._task.counts[self._plan.name]
        others = sum(n for kind, n in reduced.kinds.items() if not self._mine(kind))
        unread = sum(map(_not_accepted, self._failures))
        count.records += reduced.records
        count.filtered += reduced.filtered + others
        count.quarantined += len(waiting)
        count.applied += reduced.accepted - others - (len(waiting) - unread)
        count.changes += applied
        if (inspection := self._task.inspection(self._plan)) is not None:
            count.failed = inspection.failed
        count.add_lags(change.committed_at_us for change in changes)


def _failure(raw: RawChange, change: RowChange, error: PlatformError) -> RecordFailure:
    begun = change.begun, change.begun_at_us
    return RecordFailure(raw.records, error, raw.version, change.key, None, *begun)


def _insert_only(failure: RecordFailure) -> RowChange:
    """Returns what a failed change reports of its row's insert."""
    key, at_us = failure.key or (), failure.begun_at_us
    return RowChange(key, 0, None, 0, begun=failure.begun, begun_at_us=at_us)


def _not_accepted(failure: RecordFailure) -> bool:
    """Returns whether a failed record does not count as a change."""
    return failure.version is None or isinstance(failure.error, KeylessChangeError)


_NO_PLACE: Final = (1 << 31, 0)


_BEHIND: Final = WaitsBehindError("waits behind an earlier change of its key")


def of_events(events: EventsPlan, stored: Sequence[RowChange]) -> list[RowChange]:
    """Returns the changes of a view of events for changes of the log's tables.

    Raises:
        EventUnreadableError: An event cannot be read.
    """
    changes = []
    for change in stored:
        row = change.row
        if row is None:
            changes.append(change)
        elif row["type"] in events.form.names:
            changes.append(structs.replace(change, row=events.form.row(row)))
    return changes
