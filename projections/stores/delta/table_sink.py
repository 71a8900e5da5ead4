"""The table sink: Delta tables, written and read without a JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from msgspec import structs

from cdc.values import encoder
from projections.changes.reduced import missing_values
from projections.changes.row_change import (
    Applied,
    Refused,
    RowChange,
    completed_version,
    may_complete,
)
from projections.changes.sink import StoredKey
from projections.definition.columns import BEGUN_AT_COLUMN, BEGUN_COLUMN, VERSION_COLUMN
from projections.errors import UnholdableValueError
from projections.stores.delta import first_commit, key_equality
from projections.stores.delta.arrow import (
    deletes_schema,
    keys_table,
    rows_table,
    table_schema,
)
from projections.stores.delta.duplicate_rows import delete_duplicates
from projections.stores.delta.exact_changes import of_base, one_of_each_key, parted, places_of
from projections.stores.delta.merge_columns import assignments, quoted
from projections.stores.delta.schema_migration import reshape
from projections.stores.delta.small_table import BYTES_MAX, merged, small_rows
from projections.stores.delta.table_format import (
    FEED,
    FLOOR,
    HOOKS,
    LOADED,
    maintain,
    writing,
)
from projections.stores.delta.view_tables import ViewTables, having, keys_of, unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from projections.changes.row_change import ReadSpan
    from projections.planning.view_plan import ViewPlan

_DELETED: Final = "_headwater_deleted"


class TableSink(ViewTables):
    """Writes the live rows of a view to the Delta table `<root>/<view>`.

    Column `_version` contains each row's version. A second table, `<root>/<view>.deleted`, records
    the key and version of each delete. It is written first: after a crash between the two commits,
    the batch is replayed and finds its own deletes there. The table property `headwater.floor`
    stores the version of the last sweep. A commit is on disk when `apply` returns. Each view is
    written under a lock that every writer on this machine respects.

    Args:
        root: Folder of the tables.
        small_bytes: Size below which a table is written whole; see `small_table`.
    """

    def __init__(self, root: Path, *, small_bytes: int = BYTES_MAX) -> None:
        super().__init__(root)
        self._small_bytes = small_bytes

    def prepare(self, plan: ViewPlan) -> None:
        """Creates the view's two tables if missing, and migrates them to the view's columns."""
        with self._locked(plan):
            for name, schema in self._both(plan):
                reshape(self._create(name, schema), schema, plan.older_names)
            self._feed(plan, self._table(plan.name))

    @staticmethod
    def _feed(plan: ViewPlan, table: DeltaTable) -> None:
        """Enables the change feed of a table from which other views are derived."""
        if not plan.feeds:
            return
        # with a feed, a merge also checks rows that it omits: a delete without a row is all NULL
        for field in table.schema().fields:
            if not field.nullable:
                table.alter.drop_column_not_null(field.name)
        if FEED.items() - table.metadata().configuration.items():
            table.alter.set_table_properties(dict(FEED), raise_if_not_exists=False)

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes in at most two commits; see `Sink.apply`."""
        return self._committed(plan, lambda: self._apply(plan, changes)) if changes else Applied()

    def apply_rows(self, plan: ViewPlan, rows: pa.Table, deletes: pa.Table) -> Applied:
        """Writes changes that are in columns already, as `apply` does.

        Args:
            plan: A view with a key, and without the times of changes.
            rows: Rows, as a table of `table_schema`.
            deletes: Deletes, as a table of `deletes_schema`; at most one row or delete of each key.

        Raises:
            SinkUnavailableError: The table cannot be read or written; any part may have been.
        """
        return self._committed(plan, lambda: self._write_rows(plan, rows, deletes))

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the keys up in both tables; see `Sink.versions`."""
        return self._committed(plan, lambda: self._versions(plan, changes))

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Looks the keys up in both tables, without the lock; see `Sink.stored`.

        The tables are read one after the other. A batch writes its deletes first and is replayed
        until it completes, so a row with a newer delete is about to be removed.
        """
        try:
            return self._stored(plan, keys)
        except (
            DeltaError,
            OSError,
            pa.ArrowException,
        ) as error:  # columns may change meanwhile
            self._tables.clear()
            raise unavailable(plan, error) from None

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """Stores the version as a table property, then removes rows; see `Sink.sweep`."""
        return self._committed(plan, lambda: self._sweep(plan, below_version, reads))

    def _versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        floor = max(0, self._floor(plan) - 1)
        if plan.append_only:
            return [floor] * len(changes)
        wanted, places = places_of(plan, [change.key for change in changes])
        live, deleted = self._live_rows(plan, wanted), self._deleted_versions(plan, wanted)
        return [max(floor, live.get(place, (0,))[0], deleted.get(place, 0)) for place in places]

    def _stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        floor, encode = max(0, self._floor(plan) - 1), encoder(plan.schema)
        wanted, places = places_of(plan, keys)
        rows: dict[tuple[object, ...], list[tuple[int, dict[str, object]]]] = {}
        for place, version, row in self._rows(plan, wanted):
            rows.setdefault(place, []).append((version, row))
        deleted = self._deleted_versions(plan, wanted)
        stored = []
        for place in places:
            live = rows.get(place, [])
            version = max([floor, deleted.get(place, 0), *(version for version, _ in live)])
            stored.append(StoredKey(version, tuple(encode(row) for _, row in live)))
        return stored

    def _sweep(
        self,
        plan: ViewPlan,
        below_version: int,
        reads: Sequence[ReadSpan],  # noqa: ARG002  # a history's
    ) -> int:
        if self._floor(plan) < below_version:
            # first: later writers must refuse older changes
            self._table(plan.name).alter.set_table_properties(
                {FLOOR: str(below_version)}, raise_if_not_exists=False
            )
        swept = []
        for name, _ in self._both(plan):
            metrics = self._table(name).delete(
                f'"{VERSION_COLUMN}" < {below_version}',
                post_commithook_properties=HOOKS,
                writer_properties=writing(table_schema(plan)),
            )
            swept.append(int(metrics["num_deleted_rows"]))
        return swept[0]

    def deduplicate(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> int:
        """Keeps the row with the greatest version of each key; returns the number removed.

        Repairs a damaged table, in one commit: this sink never writes two rows of a key.

        Raises:
            SinkUnavailableError: The table cannot be read or written.
        """
        return self._committed(
            plan,
            lambda: delete_duplicates(self._table(plan.name), plan, keys),
        )

    def _apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        try:
            return self._write(plan, changes)
        except UnholdableValueError:  # what was written already is not written again
            held, refused = parted(plan, changes)
            return self._write(plan, held) + Applied(refused=tuple(refused))

    def _write(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        applied = Applied()
        for part in one_of_each_key(plan, changes):
            applied += self._write_part(plan, part)
        return applied

    def _write_part(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        floor, loaded = self._number(plan, FLOOR), self._number(plan, LOADED)
        taken = [
            # a change without a version only reports its row's insert
            c
            for c in changes
            if not c.version or (c.version >= floor and c.version != loaded)
        ]
        deletes = [change for change in taken if change.row is None]
        upserts, refused = self._complete(plan, [c for c in taken if c.row is not None])
        remembered, written, size = (
            self._write_begun(plan, changes, upserts, deletes, refused)
            if plan.inserted_at
            else self._write_latest(plan, upserts, deletes)
        )
        stale = max(0, len(changes) - written - remembered - len(refused))
        return Applied(written, remembered, stale, tuple(refused), size)

    def _write_rows(self, plan: ViewPlan, rows: pa.Table, deletes: pa.Table) -> Applied:
        given, floor = rows.num_rows + deletes.num_rows, self._number(plan, FLOOR)
        loaded = self._number(plan, LOADED)
        rows, deletes = (
            each.filter(
                pc.and_(
                    pc.greater_equal(each[VERSION_COLUMN], floor),
                    pc.not_equal(each[VERSION_COLUMN], loaded),
                )
            )
            for each in (rows, deletes)
        )
        gone = deletes if deletes.num_rows else None
        remembered = 0 if gone is None else self._remember(plan, gone)
        written, size = self._merge(plan, self._without_deleted(plan, rows), gone)
        return Applied(written, remembered, max(0, given - written - remembered), (), size)

    def _write_latest(
        self, plan: ViewPlan, upserts: Sequence[RowChange], deletes: Sequence[RowChange]
    ) -> tuple[int, int, int]:
        """Writes changes; returns the deletes recorded, the rows written and the bytes merged."""
        rows = rows_table(plan, upserts)
        gone = keys_table(plan, deletes) if deletes else None
        remembered = self._remember(plan, gone) if gone is not None else 0
        return remembered, *self._merge(plan, self._without_deleted(plan, rows), gone)

    def _write_begun(
        self,
        plan: ViewPlan,
        changes: Sequence[RowChange],
        upserts: Sequence[RowChange],
        deletes: Sequence[RowChange],
        refused: Sequence[Refused],
    ) -> tuple[int, int, int]:
        """Does the same for a view with the time of each row's insert; see `first_commit`.

        Any change of a key can report its insert, even one that is too old to be written.
        """
        own = {change.key for change in (*upserts, *deletes)}
        own.update(each.change.key for each in refused)
        only_begun = [first_commit.insert_only(c) for c in changes if c.begun and c.key not in own]
        remembered_states, remembered = self._remembered(plan, upserts), []
        for change, each in zip(upserts, remembered_states, strict=True):
            if each is not None and change.begun > each.begun:
                remembered.append(first_commit.insert_only(change))
        of_upserts = [each or first_commit.NOTHING for each in remembered_states]
        known = first_commit.known(upserts, of_upserts)
        pairs = list(zip(known, of_upserts, strict=True))
        only_begun += [
            first_commit.insert_only(c)
            for c, each in pairs
            if each.version >= c.version and c.begun
        ]
        live = [change for change, each in pairs if each.version < change.version]
        deletes = self._as_begun(plan, deletes)
        remembered += deletes
        count = self._remember(plan, keys_table(plan, remembered)) if remembered else 0
        gone = keys_table(plan, [*deletes, *only_begun]) if deletes or only_begun else None
        return count, *self._merge(plan, rows_table(plan, live), gone)

    def _remembered(
        self, plan: ViewPlan, changes: Sequence[RowChange]
    ) -> list[first_commit.KeyState | None]:
        """Returns the recorded state of each change's key; None for one that was never deleted."""
        wanted = keys_table(plan, changes)
        deletes = having(self._every_delete(plan), plan, wanted)
        known = dict(
            zip(
                keys_of(plan, deletes),
                first_commit.each_known(deletes, BEGUN_AT_COLUMN),
                strict=True,
            )
        )
        return [known.get(place) for place in keys_of(plan, wanted)]

    def _as_begun(self, plan: ViewPlan, deletes: Sequence[RowChange]) -> list[RowChange]:
        """Adds the stored insert to deletes of rows that the view only excludes."""
        excluded = [change for change in deletes if first_commit.leaves_out(change)]
        if not excluded:
            return list(deletes)
        wanted = keys_table(plan, excluded)
        names = [*plan.keys, VERSION_COLUMN, BEGUN_COLUMN, plan.inserted_at[0]]
        table = self._table(plan.name)
        stored: dict[tuple[object, ...], first_commit.KeyState] = {}
        for batch in table.to_pyarrow_dataset().to_batches(columns=names):
            rows = having(pa.Table.from_batches([batch]), plan, wanted)
            known = first_commit.each_known(rows, plan.inserted_at[0])
            stored.update(zip(keys_of(plan, rows), known, strict=True))
        inserts = [stored.get(place, first_commit.NOTHING) for place in keys_of(plan, wanted)]
        others = [change for change in deletes if not first_commit.leaves_out(change)]
        return [*others, *first_commit.known(excluded, inserts)]

    def _remember(self, plan: ViewPlan, gone: pa.Table) -> int:
        name, schema = f"{plan.name}.deleted", deletes_schema(plan)
        table = self._table(name)
        if (current := small_rows(plan, table, schema, self._small_bytes)) is not None:
            return self._overwritten(plan, name, current, gone, None)
        newer = f's."{VERSION_COLUMN}" > t."{VERSION_COLUMN}"'
        every, merger = assignments(gone.column_names), self._merger(table, plan, gone)
        merger = (
            first_commit.remembering(merger, newer)
            if plan.inserted_at
            else merger.when_matched_update(every, newer)
        )
        metrics = merger.when_not_matched_insert(every).execute()
        maintain(table, self._root, name)
        return int(metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"])

    def _without_deleted(self, plan: ViewPlan, rows: pa.Table) -> pa.Table:
        """Excludes rows with a newer recorded delete."""
        if plan.append_only or not rows.num_rows:
            return rows
        deleted = self._deleted_versions(plan, rows)
        if not deleted:
            return rows
        first = rows[plan.keys[0]]
        known = pa.array([key[0] for key in deleted], first.type)
        # nearly all rows have a key that was never deleted
        suspect = key_equality.among(first, known)
        candidates = rows.filter(suspect)
        keys = zip(keys_of(plan, candidates), candidates[VERSION_COLUMN].to_pylist(), strict=True)
        stays = np.ones(rows.num_rows, np.bool_)
        stays[np.flatnonzero(suspect.to_numpy())] = [
            deleted.get(key, 0) < version for key, version in keys
        ]
        return rows.filter(pa.array(stays))

    def _merge(self, plan: ViewPlan, rows: pa.Table, gone: pa.Table | None) -> tuple[int, int]:
        """Upserts rows and removes deleted ones; returns rows written and bytes merged."""
        schema = table_schema(plan)
        table = self._table(plan.name)
        if gone is None and table.version() == 0:
            write_deltalake(
                table,
                rows,
                mode="append",
                post_commithook_properties=HOOKS,
                writer_properties=writing(schema),
            )
            return rows.num_rows, rows.nbytes
        if (current := small_rows(plan, table, schema, self._small_bytes)) is not None:
            written = self._overwritten(plan, plan.name, current, rows, gone)
            return written, rows.nbytes + (0 if gone is None else gone.nbytes)
        marked = rows.append_column(_DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
        if gone is not None:
            gone = first_commit.as_rows(plan, gone) if plan.inserted_at else gone
            gone = gone.append_column(_DELETED, pa.array([True] * gone.num_rows, pa.bool_()))
            marked = pa.concat_tables([marked, gone], promote_options="default")
        if marked.num_rows == 0:
            return 0, 0
        newer = f's."{VERSION_COLUMN}" > t."{VERSION_COLUMN}"'
        merger = self._merger(table, plan, marked)
        merger = merger.when_matched_delete(f's."{_DELETED}" AND {newer}')
        metrics = (
            _updating(merger, plan, newer)
            .when_not_matched_insert(assignments(rows.column_names), f'NOT s."{_DELETED}"')
            .execute()
        )
        maintain(table, self._root, plan.name)
        written = metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"]
        return int(written), marked.nbytes

    def _overwritten(
        self, plan: ViewPlan, name: str, current: pa.Table, rows: pa.Table, gone: pa.Table | None
    ) -> int:
        """Writes a small table whole; returns how many of the rows are new in it."""
        whole, written = merged(plan, current, rows, gone)
        if whole is not None:
            table = self._tables[name]
            write_deltalake(
                table,
                whole,
                mode="overwrite",
                post_commithook_properties=HOOKS,
                writer_properties=writing(whole.schema),
            )
            maintain(table, self._root, name)
        return written

    def _complete(
        self, plan: ViewPlan, upserts: Sequence[RowChange]
    ) -> tuple[Sequence[RowChange], list[Refused]]:
        """Completes unchanged values from stored rows, which the lock protects."""
        partial = [change for change in upserts if change.unchanged_columns]
        if not partial:
            return upserts, []
        own = keys_table(plan, partial)
        base = keys_table(plan, [of_base(change) for change in partial])
        rows = self._live_rows(plan, pa.concat_tables([own, base]))
        deleted = self._deleted_versions(plan, own)
        keys = zip(keys_of(plan, own), keys_of(plan, base), strict=True)
        completed = [change for change in upserts if not change.unchanged_columns]
        refused, since = [], plan.kept_since
        for change, (place, base_place) in zip(partial, keys, strict=True):
            if max(deleted.get(place, 0), rows.get(place, (0, {}))[0]) >= change.version:
                continue  # stale
            version, stored = rows.get(base_place, (0, None))
            if stored is None or change.row is None or not may_complete(change, version, since):
                refused.append(
                    Refused(change, missing_values(plan.schema, change.unchanged_columns))
                )
            else:
                row = {**change.row, **{name: stored[name] for name in change.unchanged_columns}}
                version = completed_version(change, version)
                whole = structs.replace(
                    change, version=version, row=row, unchanged_columns=(), base=None
                )
                completed.append(whole)
        return completed, refused

    def _merger(self, table: DeltaTable, plan: ViewPlan, rows: pa.Table) -> Any:
        return table.merge(
            rows,
            key_equality.condition(rows, plan.keys),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so that files without these keys are skipped
            post_commithook_properties=HOOKS,
            writer_properties=writing(table_schema(plan)),
        )


def _updating(merger: Any, plan: ViewPlan, newer: str) -> Any:
    """Replaces stored rows by newer ones; an event keeps its earliest times.

    Compaction moves an event to another table, whose topic may be read before that of the log.
    """
    upserted = f'NOT s."{_DELETED}"'
    times = [quoted(name) for name, _ in plan.times]
    every = assignments(table_schema(plan).names)
    if plan.inserted_at:
        at = [quoted(name) for name in plan.inserted_at]
        return first_commit.updating(merger, every, at, f"{upserted} AND {newer}")
    if plan.events is None or not times:
        return merger.when_matched_update(every, f"{upserted} AND {newer}")
    earlier = {name: _earlier(name) for name in times}
    first = {n: f"CASE WHEN {sooner} THEN s.{n} ELSE t.{n} END" for n, sooner in earlier.items()}
    return merger.when_matched_update(every | first, f"{upserted} AND {newer}").when_matched_update(
        first, f"{upserted} AND ({' OR '.join(earlier.values())})"
    )


def _earlier(name: str) -> str:
    return f"(s.{name} < t.{name} OR (t.{name} IS NULL AND s.{name} IS NOT NULL))"
