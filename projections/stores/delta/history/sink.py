"""The history sink: every state of every key, in Delta tables, written without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from cdc.values import encoder
from projections.changes.row_batch import parts
from projections.changes.row_change import Applied, RowChange
from projections.changes.sink import StoredKey
from projections.definition.columns import VERSION_COLUMN
from projections.errors import UnholdableValueError
from projections.stores.delta import key_equality
from projections.stores.delta.arrow import keys_table
from projections.stores.delta.history.arrow import COMMIT, CURRENT, GONE, IDENTITY, HistoryForm
from projections.stores.delta.history.batch import HistoryBatch, HistoryProgress, StoredHistory
from projections.stores.delta.history.check import HistoryCheck
from projections.stores.delta.history.states import history
from projections.stores.delta.history.sweep import HistorySweep, ended
from projections.stores.delta.history.tables import (
    AT_MARK,
    COMMIT_MARK,
    OPEN_SWEEPS,
    SWEEPS,
    UNMERGED,
    VERSION_MARK,
    having,
    needs_recompute,
    open_sweeps,
    progress_of,
    sweeps_of,
    transaction,
)
from projections.stores.delta.merge_columns import assignments
from projections.stores.delta.schema_migration import loses, reshape
from projections.stores.delta.table_format import HOOKS, maintain, writing
from projections.stores.delta.table_sink import TableSink
from projections.stores.delta.view_tables import unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import ReadSpan
    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.history.arrow import TableKey
    from projections.stores.delta.history.states import HistoryChange, HistoryState


class HistorySink(TableSink):
    """Writes the states of a history to the Delta table `<root>/<view>`.

    A second table, `<root>/<view>.changes`, has every change, each once. It is written first, and
    the states record the last commit of it that they contain: after a crash between the two, the
    states of the keys in later commits are recomputed. A change that follows everything known of
    its key is joined to the current state; otherwise the states of the key are recomputed from all
    its changes. Current states have files of their own (the table is partitioned by `is_current`),
    so a batch in order reads and rewrites no ended state.

    Order: the states do not depend on the order in which changes arrive; no change is stale. Sweeps
    and truncates end states and never remove one.
    """

    def prepare(self, plan: ViewPlan) -> None:
        """Creates the history's two tables if missing, and migrates them to the view's columns.

        If a column is dropped or retyped, states that differed only in it may become one. They are
        recomputed, so that the result equals that of a new history.
        """
        form = HistoryForm(plan)
        with self._locked(plan):
            states = self._create(plan.name, form.states_schema, [CURRENT])
            changes = self._create(f"{plan.name}.changes", form.changes_schema)
            if loses(states, form.states_schema, plan.older_names):
                _set(states, {UNMERGED: "true"})  # until a process has recomputed the states
            reshape(states, form.states_schema, plan.older_names)
            reshape(changes, form.changes_schema, plan.older_names)
            if needs_recompute(self._states(form)):
                for keys in HistoryCheck(self._root, plan).unsettled():
                    self._recompute_states(form, keys)
                _set(self._states(form), {UNMERGED: ""})
            self._feed(plan, self._states(form))

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads the row of every key as its source has it; see `Sink.documents`.

        This is the current state; for rows with times of their own, the last recorded one.
        """
        form = HistoryForm(plan)
        encode = encoder(form.plan.schema)
        try:
            rows = self._recorded_last(form) if form.rule.by_sequence else self._current_rows(form)
            for row in rows:
                yield encode(row)
        except (DeltaError, OSError, pa.ArrowException) as error:  # columns may change meanwhile
            raise unavailable(plan, error) from None

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads every live row; see `Sink.parts`."""
        return parts(plan, self.documents(plan))

    def erase(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]], through: int) -> int:
        """Erases all changes of keys up to a version.

        Their states are recomputed from later changes only. Repeating it changes nothing.

        Args:
            plan: The history.
            keys: Values of the keys.
            through: The version.

        Returns:
            The number of erased changes.

        Raises:
            SinkUnavailableError: A table cannot be read or written.
        """
        return self._committed(plan, lambda: self._erase(plan, keys, through))

    def _erase(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]], through: int) -> int:
        form, changes = HistoryForm(plan), self._changes(HistoryForm(plan))
        wanted = keys_table(plan, [RowChange(key, 0, None, 0) for key in keys])
        same = key_equality.condition(wanted, form.plan.keys)
        metrics = (
            changes.merge(
                wanted.select(list(form.plan.keys)),
                f't."{VERSION_COLUMN}" <= {through} AND {same}',
                source_alias="s",
                target_alias="t",
                streamed_exec=False,
                post_commithook_properties=HOOKS,
                writer_properties=writing(form.changes_schema),
            )
            .when_matched_delete()
            .execute()
        )
        self._recompute_states(form, set(form.keys_in(wanted)))
        return int(metrics["num_target_rows_deleted"])

    def _recompute_states(self, form: HistoryForm, keys: set[TableKey]) -> None:
        """Recomputes the states of some keys from their changes."""
        progress, known = self._progress(form), self._known(form, keys)
        states: list[tuple[TableKey, HistoryState]] = []
        gone: list[tuple[TableKey, tuple[int, int]]] = []
        for key, former in self._identities(form, keys).items():
            every = known.get(key)
            recomputed = history(progress.with_sweeps(every), form.rule) if every else []
            states += [(key, state) for state in recomputed]
            obsolete = former - {state.identity for state in recomputed}
            gone += [(key, identity) for identity in obsolete]
        self._write_states(form, states, gone, progress, fresh=False, within=False)

    def _stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        form = HistoryForm(plan)
        encode = encoder(form.plan.schema)
        changes = [RowChange(key, 0, None, 0) for key in keys]
        incoming_by_key = HistoryBatch.parted(form, changes).by_key
        table_keys = {
            incoming.change.key: table_key
            for table_key, of_key in incoming_by_key.items()
            for incoming in of_key
        }
        known = self._known(form, incoming_by_key.keys())
        swept = max((sweep.version for sweep in self._sweeps(form)), default=0)
        rows: dict[TableKey, list[Mapping[str, object]]] = {}
        if form.rule.by_sequence:
            for table_key, of_key in known.items():
                last = max(of_key, key=lambda change: change.version)
                if last.row is not None and last.version > swept:
                    rows[table_key] = [last.row]
        else:
            for part in having(self._states(form), form, incoming_by_key.keys(), current=True):
                for table_key, state in form.states(part):
                    rows.setdefault(table_key, []).append(state.row)
        holdings = []
        for key in keys:
            own = table_keys.get(key, ())
            versions = (change.version for change in known.get(own, ()))
            version = max(versions, default=0)
            held = tuple(encode(row) for row in rows.get(own, ()))
            holdings.append(StoredKey(max(version, swept) if version else 0, held))
        return holdings

    def _apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        form = HistoryForm(plan)
        truncates = [HistorySweep(c.version, c.committed_at_us) for c in changes if not c.key]
        keyed = [change for change in changes if change.key]
        self._note(form, truncates)
        try:
            batch = HistoryBatch(form, keyed)
            self._take(form, batch, plan.kept_since)
        except UnholdableValueError:  # conversion precedes every write
            batch = HistoryBatch.parted(form, keyed)
            self._take(form, batch, plan.kept_since)
        self._end(form)
        return batch.applied() + Applied(deleted=len(truncates))

    def _versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        form = HistoryForm(plan)
        batch = HistoryBatch.parted(form, changes)
        known = self._known(form, batch.by_key.keys())
        newest = {
            incoming.change.key: max((change.version for change in known.get(key, ())), default=0)
            for key, of_key in batch.by_key.items()
            for incoming in of_key
        }
        return [newest.get(change.key, 0) for change in changes]

    def _sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan]) -> int:
        form = HistoryForm(plan)
        first = self._first_version(form)
        if first is None:
            return 0  # the history is still empty
        self._note(
            form,
            [
                HistorySweep(each.version - 1, each.at_us, each.until_us)
                for each in reads
                if first < each.version <= below_version
            ],
        )
        return self._end(form)

    def _take(self, form: HistoryForm, batch: HistoryBatch, kept_since: int) -> None:
        """Writes changes in two commits: the changes themselves, then the states of their keys."""
        progress = self._progress(form)
        unsettled = self._left_behind(form, progress)
        if not batch.by_key and not unsettled:
            return
        current = self._current(form, {*batch.by_key, *unsettled})
        stored = StoredHistory(progress, current, unsettled)
        stored.incomplete = unsettled | batch.incomplete(stored)
        stored.known = self._known(form, stored.incomplete)
        batch.complete(stored, kept_since)
        self._log(form, batch)
        self._settle(form, stored, batch)

    def _log(self, form: HistoryForm, batch: HistoryBatch) -> None:
        taken = [(key, change) for key, of_key in batch.taken.items() for change in of_key]
        if not taken:
            return
        table = self._changes(form)
        commit = transaction(table, COMMIT_MARK) + 1
        rows = form.changes_table(taken, commit)
        write_deltalake(
            table,
            rows,
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(COMMIT_MARK, commit)]),
            post_commithook_properties=HOOKS,
            writer_properties=writing(form.changes_schema),
        )
        maintain(table, self._root, f"{form.plan.name}.changes")

    def _settle(self, form: HistoryForm, stored: StoredHistory, batch: HistoryBatch) -> None:
        """Writes the states of all changed keys."""
        changed = stored.unsettled | (batch.taken.keys() & stored.incomplete)
        former = self._identities(form, {key for key in changed if stored.known.get(key)})
        states: list[tuple[TableKey, HistoryState]] = []
        gone: list[tuple[TableKey, tuple[int, int]]] = []
        for key in changed:
            every = [*stored.known.get(key, ()), *batch.taken.get(key, ())]
            settled = history(stored.progress.with_sweeps(every), form.rule)
            states += [(key, state) for state in settled]
            obsolete = former.get(key, set()) - {state.identity for state in settled}
            gone += [(key, identity) for identity in obsolete]
        for key in batch.taken:
            if key not in stored.incomplete:
                settled = batch.joined(key, stored.current.get(key))
                states += [(key, state) for state in settled]
        changes = [c for of_key in (*batch.taken.values(), *stored.known.values()) for c in of_key]
        commit = transaction(self._changes(form), COMMIT_MARK)
        progress = stored.progress.after(changes, commit)
        fresh = not former and not any(key in stored.current for key, _ in states)
        self._write_states(form, states, gone, progress, fresh=fresh, within=not former)

    def _write_states(  # noqa: PLR0913  # the parts of one commit
        self,
        form: HistoryForm,
        states: Sequence[tuple[TableKey, HistoryState]],
        gone: Sequence[tuple[TableKey, tuple[int, int]]],
        progress: HistoryProgress,
        *,
        fresh: bool,
        within: bool,
    ) -> None:
        if not states and not gone:
            return
        table = self._states(form)
        rows = form.states_table(states)
        versions = {
            VERSION_MARK: progress.version,
            AT_MARK: progress.at_us,
            COMMIT_MARK: progress.commit,
        }
        properties = CommitProperties(
            app_transactions=[Transaction(name, number) for name, number in versions.items()]
        )
        if fresh:
            write_deltalake(
                table,
                rows,
                mode="append",
                commit_properties=properties,
                post_commithook_properties=HOOKS,
                writer_properties=writing(form.states_schema),
            )
            maintain(table, self._root, form.plan.name)
            return
        every = assignments(rows.column_names)
        rows = rows.append_column(GONE, pa.array([False] * rows.num_rows, pa.bool_()))
        if gone:
            removed = form.gone_table(gone)
            removed = removed.append_column(GONE, pa.array([True] * len(gone), pa.bool_()))
            # a removed state has only its key and identity
            rows = rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))
            rows = pa.concat_tables([rows, removed], promote_options="default")
        names = [*form.plan.keys, *IDENTITY]
        on = key_equality.condition(rows, names)
        (
            table.merge(
                rows,
                f't."{CURRENT}" = true AND {on}' if within else on,
                source_alias="s",
                target_alias="t",
                streamed_exec=False,  # so that files without these keys are skipped
                commit_properties=properties,
                post_commithook_properties=HOOKS,
                writer_properties=writing(form.states_schema),
            )
            .when_matched_delete(f's."{GONE}"')
            .when_matched_update(every, f'NOT s."{GONE}"')
            .when_not_matched_insert(every, f'NOT s."{GONE}"')
            .execute()
        )
        maintain(table, self._root, form.plan.name)

    def _end(self, form: HistoryForm) -> int:
        """Ends the states that open sweeps have ended; returns the number of states."""
        versions = open_sweeps(self._states(form))
        if not versions:
            return 0
        progress = self._progress(form)
        changed: set[TableKey] = set()
        for sweep in progress.sweeps:
            if sweep.version in versions:
                changed |= ended(form, self._changes(form), sweep, progress.sweeps)
        held = self._current(form, changed).keys()
        if changed:
            changed |= self._left_behind(form, progress)  # records that the sweeps are complete
            stored = StoredHistory(progress, {}, changed, changed, self._known(form, changed))
            self._settle(form, stored, HistoryBatch(form, ()))
        _set(self._states(form), {OPEN_SWEEPS: ""})
        return len(held - self._current(form, held).keys())

    def _progress(self, form: HistoryForm) -> HistoryProgress:
        return progress_of(self._states(form))

    def _sweeps(self, form: HistoryForm) -> tuple[HistorySweep, ...]:
        return sweeps_of(self._states(form))

    def _note(self, form: HistoryForm, sweeps: Iterable[HistorySweep]) -> None:
        """Records sweeps permanently: they also end older changes that arrive later."""
        states = self._states(form)
        known = {each.version: each for each in sweeps_of(states)}
        # of two reads at one position, the earlier one has shown what was gone there
        earliest_last = sorted(sweeps, reverse=True)
        new = {each.version: each for each in earliest_last if each.version not in known}
        if not new:
            return
        known |= new
        text = ",".join(":".join(map(str, known[version])) for version in sorted(known))
        still = sorted(open_sweeps(states) | new.keys())
        _set(states, {SWEEPS: text, OPEN_SWEEPS: ",".join(map(str, still))})

    def _first_version(self, form: HistoryForm) -> int | None:
        """Returns the version of the oldest change; None if there is none."""
        versions = self._changes(form).to_pyarrow_dataset().to_table(columns=[VERSION_COLUMN])
        first: int | None = pc.min(versions.column(VERSION_COLUMN)).as_py()
        return first

    def _left_behind(self, form: HistoryForm, progress: HistoryProgress) -> set[TableKey]:
        """Returns keys with changes that the states lack, after a crash between the two commits."""
        table = self._changes(form)
        if transaction(table, COMMIT_MARK) == progress.commit:
            return set()
        rows = table.to_pyarrow_dataset().to_table(columns=[*form.plan.keys, COMMIT])
        newer = rows.filter(pc.greater(rows.column(COMMIT), progress.commit))
        return set(form.keys_in(newer))

    def _known(
        self, form: HistoryForm, keys: Collection[TableKey]
    ) -> dict[TableKey, list[HistoryChange]]:
        """Returns all changes of some keys."""
        known: dict[TableKey, list[HistoryChange]] = {}
        for rows in having(self._changes(form), form, keys):
            for key, change in form.changes(rows):
                if key in keys:
                    known.setdefault(key, []).append(change)
        return known

    def _identities(
        self, form: HistoryForm, keys: Collection[TableKey]
    ) -> dict[TableKey, set[tuple[int, int]]]:
        """Returns the stored states of some keys."""
        identities_by_key: dict[TableKey, set[tuple[int, int]]] = {}
        for rows in having(self._states(form), form, keys, [*form.plan.keys, *IDENTITY]):
            identities = zip(*(rows.column(name).to_pylist() for name in IDENTITY), strict=True)
            for key, identity in zip(form.keys_in(rows), identities, strict=True):
                if key in keys:
                    identities_by_key.setdefault(key, set()).add(identity)
        return identities_by_key

    def _current(
        self, form: HistoryForm, keys: Collection[TableKey] | None
    ) -> dict[TableKey, HistoryState]:
        """Returns the current states of some keys, or of all."""
        return {
            key: state
            for rows in having(self._states(form), form, keys, current=True)
            for key, state in form.states(rows)
            if keys is None or key in keys
        }

    def _current_rows(self, form: HistoryForm) -> Iterator[Mapping[str, object]]:
        for rows in having(self._states(form), form, None, current=True):
            for _, state in form.states(rows):
                yield state.row

    def _recorded_last(self, form: HistoryForm) -> Iterator[Mapping[str, object]]:
        swept = max((sweep.version for sweep in self._sweeps(form)), default=0)
        last: dict[TableKey, HistoryChange] = {}
        for rows in having(self._changes(form), form, None):
            for key, change in form.changes(rows):
                if key not in last or last[key].version < change.version:
                    last[key] = change
        for change in last.values():
            if change.row is not None and change.version > swept:
                yield change.row

    def _states(self, form: HistoryForm) -> DeltaTable:
        return self._table(form.plan.name)

    def _changes(self, form: HistoryForm) -> DeltaTable:
        return self._table(f"{form.plan.name}.changes")


def _set(table: DeltaTable, properties: dict[str, str]) -> None:
    table.alter.set_table_properties(properties, raise_if_not_exists=False)
