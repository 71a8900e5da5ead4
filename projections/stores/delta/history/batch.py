"""A batch of changes on its way into a history: what must be read, and what is written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from projections.changes.reduced import missing_values
from projections.changes.row_change import (
    Applied,
    Refused,
    completed_version,
    may_complete,
    read,
    whole_row_read,
)
from projections.errors import UnholdableValueError, WaitsBehindError
from projections.stores.delta.history.arrow import microseconds
from projections.stores.delta.history.states import HistoryChange, extend, follows, steps
from projections.stores.delta.history.sweep import ends, reopened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from projections.changes.row_change import RowChange
    from projections.errors import SinkError
    from projections.stores.delta.history.arrow import HistoryForm, TableKey
    from projections.stores.delta.history.states import HistoryState
    from projections.stores.delta.history.sweep import HistorySweep

_Row = tuple[int, "Mapping[str, object] | None", int]
"""Version, values and time of a row."""

_BEHIND: Final = WaitsBehindError("waits behind an earlier change of its key")


class HistoryProgress(NamedTuple):
    """The progress of a history; no key has anything beyond it.

    Attributes:
        version: Greatest version of its changes.
        at_us: Greatest record time of its changes.
        commit: Last commit of changes that the states contain.
        sweeps: The sweeps so far.
    """

    version: int
    at_us: int
    commit: int
    sweeps: tuple[HistorySweep, ...] = ()

    def with_sweeps(self, changes: Sequence[HistoryChange]) -> list[HistoryChange]:
        """Adds the sweeps that ended rows of the key to its changes."""
        return [*changes, *ends(changes, self.sweeps)]

    def after(self, changes: Iterable[HistoryChange], commit: int) -> HistoryProgress:
        """Returns the progress after some changes."""
        version, at_us = self.version, self.at_us
        for change in changes:
            version, at_us = max(version, change.version), max(at_us, change.at_us)
        return self._replace(version=version, at_us=at_us, commit=commit)


class IncomingChange(NamedTuple):
    """A change of the batch.

    Attributes:
        change: The change.
        key: Its key in the form of the tables.
        base: Key of the row with its unchanged values, if it is another key.
        at_us: Record time.
        sequence_us: The row's own time.
    """

    change: RowChange
    key: TableKey
    base: TableKey | None
    at_us: int
    sequence_us: int | None

    def timed(self, form: HistoryForm) -> IncomingChange:
        """Returns the change with its row's own time, if the history goes by that.

        Raises:
            UnholdableValueError: The row has none.
        """
        row = self.change.row
        if form.sequence_by is None or row is None:
            return self
        time: datetime | None = row[form.sequence_by]  # type: ignore[assignment]
        if time is None:
            raise UnholdableValueError(
                f"view {form.plan.name}: a row has no time of validity",
                detail=f"column {form.sequence_by} is NULL",
                hint="set the time at the source, then drop the quarantined record",
            )
        return self._replace(sequence_us=microseconds(time))

    def made(self, version: int, row: Mapping[str, object] | None) -> HistoryChange:
        """Returns the change with all its values."""
        inserted = self.change.inserted
        if row is None and not read(version):  # a delete in the log, not one that a read found
            inserted = False
        return HistoryChange(version, self.at_us, row, self.sequence_us, inserted)


@dataclass(slots=True)
class StoredHistory:
    """What is stored of the keys of a batch.

    Attributes:
        progress: Its progress.
        current: Current states.
        unsettled: Keys whose states must be recomputed in any case.
        incomplete: Keys for which all changes must be read.
        known: The changes of those keys.
    """

    progress: HistoryProgress
    current: Mapping[TableKey, HistoryState]
    unsettled: set[TableKey]
    incomplete: set[TableKey] = field(default_factory=set)
    known: Mapping[TableKey, list[HistoryChange]] = field(default_factory=dict)


class HistoryBatch:
    """Changes of one history, in log order.

    Args:
        form: The history's form.
        changes: The changes.
        refused: Changes that cannot be stored.

    Raises:
        UnholdableValueError: A key has no exact form.
    """

    def __init__(
        self, form: HistoryForm, changes: Iterable[RowChange], refused: Iterable[Refused] = ()
    ) -> None:
        self._form = form
        self.refused = list(refused)
        self._blocked = {each.change.key: each.change.version for each in self.refused}
        self.taken: dict[TableKey, list[HistoryChange]] = defaultdict(list)
        self.by_key: dict[TableKey, list[IncomingChange]] = defaultdict(list)
        self._lacking: set[TableKey | None] = set()
        self._recorded: dict[TableKey, dict[int, int]] = {}
        self._stale = 0
        self._incoming = self._of(sorted(changes, key=lambda change: change.version))
        for incoming in self._incoming:
            self.by_key[incoming.key].append(incoming)

    @classmethod
    def parted(cls, form: HistoryForm, changes: Sequence[RowChange]) -> HistoryBatch:
        """Returns a batch of the changes with an exact form in the tables."""
        held, refused = _parted(form, changes)
        return cls(form, held, refused)

    def incomplete(self, stored: StoredHistory) -> set[TableKey]:
        """Returns the keys for which the current state is not enough."""
        incomplete: set[TableKey] = set()
        for key, incoming in self.by_key.items():
            incomplete.update(each.base for each in incoming if each.base is not None)
            if not self._joins(incoming, stored.current.get(key), stored.progress):
                incomplete.add(key)
        return incomplete

    def complete(self, stored: StoredHistory, kept_since: int) -> None:
        """Completes the changes that are not yet stored with their unchanged values."""
        for incoming in self._incoming:
            change = incoming.change
            if change.version > self._blocked.get(change.key, change.version):
                self._refuse(incoming, _BEHIND)
                continue
            if self._has(stored, incoming):
                self._stale += 1
                continue
            version, row = change.version, change.row
            if row is not None and change.unchanged_columns:
                before = self._before(stored, incoming, kept_since)
                if (
                    before is None
                    or before[1] is None
                    or not may_complete(change, before[0], kept_since)
                ):
                    error = missing_values(self._form.plan.schema, change.unchanged_columns)
                    self.refused.append(Refused(change, error))
                    self._lacking.add(change.key)
                    continue
                row = {**row, **{name: before[1][name] for name in change.unchanged_columns}}
                version = completed_version(change, before[0])
            self._lacking.discard(change.key)  # a complete change needs no earlier row
            self.taken[incoming.key].append(incoming.made(version, row))
            self._recorded[incoming.key][version] = incoming.at_us

    def joined(self, key: TableKey, current: HistoryState | None) -> list[HistoryState]:
        """Returns the states that follow from a current one and later changes."""
        states = [] if current is None else [current]
        for at_us, changes in steps(self.taken[key]):
            extend(states, changes[-1], at_us, self._form.rule)
        return states

    def applied(self) -> Applied:
        """Returns the result of the changes."""
        taken = [change for changes in self.taken.values() for change in changes]
        deleted = sum(change.row is None for change in taken)
        return Applied(len(taken) - deleted, deleted, self._stale, tuple(self.refused))

    def _of(self, changes: Sequence[RowChange]) -> list[IncomingChange]:
        form, timed = self._form, []
        keys = form.table_keys([change.key for change in changes])
        moved = [change for change in changes if change.base is not None]
        bases = dict(
            zip(map(id, moved), form.table_keys([c.base or () for c in moved]), strict=True)
        )
        for change, key in zip(changes, keys, strict=True):
            at_us = change.committed_at_us or change.read_at_us
            incoming = IncomingChange(change, key, bases.get(id(change)), at_us, None)
            try:
                timed.append(incoming.timed(form))
            except UnholdableValueError as error:
                self._refuse(incoming, error)
        return timed

    def _joins(
        self,
        incoming: Sequence[IncomingChange],
        current: HistoryState | None,
        progress: HistoryProgress,
    ) -> bool:
        """Returns whether the changes of a key follow all known ones and need only its state."""
        made = [each.made(each.change.version, each.change.row) for each in incoming]
        moved = any(each.base is not None for each in incoming)
        if moved or reopened(made, current, progress.sweeps):
            return False
        rule = self._form.rule
        later = steps(made)
        first = incoming[0].change.version
        partial = any(each.change.unchanged_columns for each in incoming)
        if rule.by_sequence or current is None:
            if partial or first <= progress.version or later[0][0] <= progress.at_us:
                return False
            return follows(progress.at_us if current is None else current.last_at_us, later, rule)
        lent_by_read = partial and whole_row_read(current.last_version)
        if first <= current.last_version or lent_by_read:
            return False
        if any(current.last_version < sweep.version for sweep in progress.sweeps):
            return False
        return follows(current.last_at_us, later, rule)

    def _has(self, stored: StoredHistory, incoming: IncomingChange) -> bool:
        known = self._recorded.get(incoming.key)
        if known is None:
            known = self._recorded[incoming.key] = {}
            for change in stored.known.get(incoming.key, ()):
                known[change.version] = min(change.at_us, known.get(change.version, change.at_us))
        version = incoming.change.version
        own = (
            (version, completed_version(incoming.change, 1))
            if incoming.change.unchanged_columns
            else (version,)
        )
        return any(each in known and known[each] <= incoming.at_us for each in own)

    def _before(
        self, stored: StoredHistory, incoming: IncomingChange, kept_since: int
    ) -> tuple[int, Mapping[str, object] | None] | None:
        """Returns version and values of the row that has a change's unchanged values."""
        source_key = incoming.change.key if incoming.base is None else incoming.change.base
        if source_key in self._lacking or source_key in self._blocked:
            return None
        key = incoming.key if incoming.base is None else incoming.base
        until = incoming.change.version if incoming.base is None else incoming.change.moved_at
        known = [*stored.known.get(key, ()), *self.taken.get(key, ())]
        if incoming.base is not None and not self._move_known(known, incoming):
            return None  # the old row may lack some of its changes
        older = [(c.version, c.row, c.at_us) for c in known if c.version < until]
        current = stored.current.get(key)
        if key not in stored.incomplete and current is not None:
            older.append((current.last_version, current.row, current.last_at_us))
        last = max(older, key=itemgetter(0), default=None)
        if last is None:
            return None
        truncates = [sweep.version for sweep in stored.progress.sweeps if sweep.logged]
        if whole_row_read(last[0]):
            last = self._logged_instead(older, last, incoming, truncates, kept_since)
        if any(last[0] < version < until for version in truncates):
            return None  # the row ended with all others, and later changes are not applied yet
        return last[:2]

    @staticmethod
    def _logged_instead(
        older: Sequence[_Row],
        read_row: _Row,
        incoming: IncomingChange,
        truncates: Sequence[int],
        since: int,
    ) -> _Row:
        """Returns the logged row before one that was read, if the read may be too late.

        A row read after the change was committed may contain a later change. If both rows have the
        same values, the logged one is used, so the result does not depend on which of them has
        arrived.
        """
        logged = [each for each in older if not whole_row_read(each[0])]
        last = max(logged, key=itemgetter(0), default=read_row)
        row, read_values = last[1], read_row[1]
        if row is None or read_values is None or not may_complete(incoming.change, last[0], since):
            return read_row
        if any(last[0] < version < read_row[0] for version in truncates):
            return read_row
        same = all(row[name] == read_values[name] for name in incoming.change.unchanged_columns)
        return last if same or read_row[2] >= incoming.at_us else read_row

    def _move_known(self, known: Iterable[HistoryChange], incoming: IncomingChange) -> bool:
        """Returns whether the move of a row from its old key is known, and so all before it."""
        version = incoming.change.moved_at
        here = (each.change for each in self.by_key.get(incoming.base or (), ()))
        return any(change.version == version and change.row is None for change in known) or any(
            change.version == version and change.row is None for change in here
        )

    def _refuse(self, incoming: IncomingChange, error: SinkError | WaitsBehindError) -> None:
        self.refused.append(Refused(incoming.change, error))
        self._blocked.setdefault(incoming.change.key, incoming.change.version)


def _parted(
    form: HistoryForm, changes: Sequence[RowChange]
) -> tuple[list[RowChange], list[Refused]]:
    """Separates changes with an exact form in the tables from those without one."""
    try:
        keys = form.table_keys([change.key for change in changes])
        form.table_keys([change.base for change in changes if change.base is not None])
        made = [HistoryChange(change.version, 0, change.row) for change in changes]
        form.changes_table(list(zip(keys, made, strict=True)), 0)
    except UnholdableValueError as error:
        if len(changes) == 1:
            return [], [Refused(changes[0], error)]
        middle = len(changes) // 2
        held, refused = _parted(form, changes[:middle])
        more_held, more_refused = _parted(form, changes[middle:])
        return held + more_held, refused + more_refused
    return list(changes), []
