"""The table sink: Delta tables, written and read without a JVM."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, PostCommitHookProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from cdc.values import encoder
from projections.change import Applied, RowChange
from projections.documents import no_stored_row
from projections.errors import SinkRefusedError, SinkUnavailableError
from projections.plan import VERSION_COLUMN
from projections.sinks.arrow import (
    decoded_rows,
    deletes_schema,
    keys_table,
    rows_table,
    table_schema,
)
from projections.sinks.lock import WriterLock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from projections.plan import ViewPlan

COMMITS_PER_COMPACTION: Final = 50
COMPACTED_BYTES: Final = 32 << 20
"""Size of a compacted file: a merge rewrites every file that it touches."""

KEPT_HOURS: Final = 1
"""How long a replaced file stays for readers of an older version."""

_DELETED: Final = "_headwater_deleted"
_ATTEMPTS: Final = 3
CONFIGURATION: Final = {
    "delta.checkpointInterval": "20",
    "delta.logRetentionDuration": "interval 1 day",
    "delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hour",
}
_HOOKS: Final = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=True)
LOADED: Final = "headwater.loaded"
"""Property of a table that was filled from the source: the version of the read that it stands for.
What that read sends is there already, or has changed since and comes by the stream."""
logger = logging.getLogger(__name__)


class TableSink:
    """Keeps the live rows of a view in the Delta table `<root>/<view>`.

    Each row has its version in `_version`. Deletes are remembered, key and version, in a second
    table, `<root>/<view>.deleted`, which is written first: after a crash between the two, the
    batch is given again and finds its own deletes there. A commit is on disk when `apply`
    returns. Each view is written under a lock that every writer on this machine respects.

    Args:
        root: Folder of the tables.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tables: dict[str, DeltaTable] = {}
        self._deletes: dict[str, tuple[int, pa.Table]] = {}  # by table; its version, its rows

    def prepare(self, plan: ViewPlan) -> None:
        """Makes the view's two tables unless they are there."""
        with self._locked(plan):
            for name, schema in self._both(plan):
                self._table(name, schema)

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes in at most two commits; see `Sink.apply`."""
        if not changes:
            return Applied()
        with self._locked(plan):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return self._apply(plan, changes)
                except CommitFailedError as error:
                    self._tables.clear()
                    if attempt == _ATTEMPTS:
                        raise _unavailable(plan, error) from None
                except (DeltaError, OSError) as error:
                    self._tables.clear()
                    raise _unavailable(plan, error) from None
        raise AssertionError  # the loop returns or raises

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row of the newest version; see `Sink.documents`."""
        encode = encoder(plan.schema)
        try:
            dataset = self._table(plan.name, table_schema(plan)).to_pyarrow_dataset()
            names = [column.name for column in plan.schema.columns]
            for batch in dataset.to_batches(columns=names):
                for row in decoded_rows(plan, pa.Table.from_batches([batch])):
                    yield encode(row)
        except (DeltaError, OSError) as error:
            raise _unavailable(plan, error) from None

    def close(self) -> None:
        """Forgets the open tables."""
        self._tables.clear()

    def _apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        loaded = self._loaded(plan)
        taken = [change for change in changes if change.version != loaded]
        rows = [change for change in taken if change.row is not None]
        deletes = [change for change in taken if change.row is None]
        upserts = self._complete(plan, rows)
        remembered = self._remember(plan, deletes) if deletes else 0
        alive = self._without_deleted(plan, upserts)
        written, size = self._merge(plan, alive, deletes)
        stale = len(changes) - written - remembered
        return Applied(upserted=written, deleted=remembered, stale=stale, size_bytes=size)

    def _remember(self, plan: ViewPlan, deletes: Sequence[RowChange]) -> int:
        table = self._table(f"{plan.name}.deleted", deletes_schema(plan))
        newer = f's."{VERSION_COLUMN}" > t."{VERSION_COLUMN}"'
        metrics = (
            self._merger(table, plan, keys_table(plan, deletes))
            .when_matched_update_all(newer)
            .when_not_matched_insert_all()
            .execute()
        )
        self._maintain(table)
        return int(metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"])

    def _without_deleted(self, plan: ViewPlan, upserts: Sequence[RowChange]) -> Sequence[RowChange]:
        """Leaves out rows that were deleted after these changes."""
        if plan.append_only or not upserts:
            return upserts
        wanted = keys_table(plan, upserts)
        versions = self._deleted_versions(plan, wanted)
        if not versions:
            return upserts
        return [
            change
            for change, place in zip(upserts, _keys_of(plan, wanted), strict=True)
            if versions.get(place, 0) < change.version
        ]

    def _merge(
        self, plan: ViewPlan, upserts: Sequence[RowChange], deletes: Sequence[RowChange]
    ) -> tuple[int, int]:
        """Writes rows and takes deleted ones out; returns rows written and bytes given."""
        table = self._table(plan.name, table_schema(plan))
        rows = rows_table(plan, upserts)
        if not deletes and table.version() == 0:
            write_deltalake(table, rows, mode="append", post_commithook_properties=_HOOKS)
            return rows.num_rows, rows.nbytes
        marked = rows.append_column(_DELETED, pa.array([False] * rows.num_rows, pa.bool_()))
        if deletes:
            gone = keys_table(plan, deletes)
            gone = gone.append_column(_DELETED, pa.array([True] * gone.num_rows, pa.bool_()))
            marked = pa.concat_tables([marked, gone], promote_options="default")
        if marked.num_rows == 0:
            return 0, 0
        newer = f's."{VERSION_COLUMN}" > t."{VERSION_COLUMN}"'
        metrics = (
            self._merger(table, plan, marked)
            .when_matched_delete(f's."{_DELETED}" AND {newer}')
            .when_matched_update_all(f'NOT s."{_DELETED}" AND {newer}', except_cols=[_DELETED])
            .when_not_matched_insert_all(f'NOT s."{_DELETED}"', except_cols=[_DELETED])
            .execute()
        )
        self._maintain(table)
        written = metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"]
        return int(written), marked.nbytes

    def _complete(self, plan: ViewPlan, upserts: Sequence[RowChange]) -> Sequence[RowChange]:
        """Fills in unchanged values from the stored rows; the lock keeps those as they are."""
        partial = [change for change in upserts if change.kept]
        if not partial:
            return upserts
        wanted = keys_table(plan, partial)
        rows = self._live_rows(plan, wanted)
        deleted = self._deleted_versions(plan, wanted)
        places = dict(zip(map(id, partial), _keys_of(plan, wanted), strict=True))
        completed = []
        for change in upserts:
            place = places.get(id(change))
            if place is None:
                completed.append(change)
            elif deleted.get(place, 0) < change.version:
                completed.append(_filled(plan, change, rows.get(place)))
        return completed

    def _loaded(self, plan: ViewPlan) -> int:
        table = self._table(plan.name, table_schema(plan))
        return int(table.metadata().configuration.get(LOADED, "0"))

    def _deleted_versions(self, plan: ViewPlan, wanted: pa.Table) -> dict[tuple[object, ...], int]:
        """Versions of the remembered deletes among these keys."""
        name = f"{plan.name}.deleted"
        table = self._table(name, deletes_schema(plan))
        known = self._deletes.get(name)
        if known is None or known[0] != table.version():
            known = table.version(), table.to_pyarrow_dataset().to_table()
            self._deletes[name] = known
        found = _having(known[1], plan, wanted)
        return dict(zip(_keys_of(plan, found), found[VERSION_COLUMN].to_pylist(), strict=True))

    def _live_rows(
        self, plan: ViewPlan, wanted: pa.Table
    ) -> dict[tuple[object, ...], dict[str, object]]:
        """Stored rows among these keys."""
        rows: dict[tuple[object, ...], dict[str, object]] = {}
        table = self._table(plan.name, table_schema(plan))
        # not filtered while it is read: pyarrow fails on the statistics of texts
        for batch in table.to_pyarrow_dataset().to_batches():
            found = _having(pa.Table.from_batches([batch]), plan, wanted)
            if found.num_rows:
                rows |= zip(_keys_of(plan, found), decoded_rows(plan, found), strict=True)
        return rows

    def _merger(self, table: DeltaTable, plan: ViewPlan, rows: pa.Table) -> Any:
        on = " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in plan.keys)
        return table.merge(
            rows,
            on,
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so that files without these keys are skipped
            post_commithook_properties=_HOOKS,
        )

    def _maintain(self, table: DeltaTable) -> None:
        if table.version() % COMMITS_PER_COMPACTION:
            return
        table.optimize.compact(target_size=COMPACTED_BYTES)
        table.vacuum(retention_hours=KEPT_HOURS, enforce_retention_duration=False, dry_run=False)

    def _table(self, name: str, schema: pa.Schema) -> DeltaTable:
        table = self._tables.get(name)
        if table is None:
            path = str(self._root / name)
            if DeltaTable.is_deltatable(path):
                table = DeltaTable(path)
            else:
                table = DeltaTable.create(path, schema, configuration=dict(CONFIGURATION))
            self._tables[name] = table
        else:
            table.update_incremental()
        return table

    def _both(self, plan: ViewPlan) -> list[tuple[str, pa.Schema]]:
        tables = [(plan.name, table_schema(plan))]
        if not plan.append_only:
            tables.append((f"{plan.name}.deleted", deletes_schema(plan)))
        return tables

    def _locked(self, plan: ViewPlan) -> WriterLock:
        return WriterLock(self._root / f".{plan.name}.lock", wait=True)


def _filled(plan: ViewPlan, change: RowChange, stored: Mapping[str, object] | None) -> RowChange:
    if stored is None or change.row is None:
        raise no_stored_row(plan, change)
    row = {**change.row, **{name: stored[name] for name in change.kept}}
    return RowChange(change.key, change.version, row, change.committed_at_us)


def _having(table: pa.Table, plan: ViewPlan, wanted: pa.Table) -> pa.Table:
    """Rows that have one of the wanted keys, and perhaps more where a key has several columns."""
    first = plan.keys[0]
    values = wanted.column(first).combine_chunks()
    return table.filter(pc.is_in(table.column(first), value_set=values))


def _keys_of(plan: ViewPlan, table: pa.Table) -> list[tuple[object, ...]]:
    columns = [table.column(name).to_pylist() for name in plan.keys]
    return list(zip(*columns, strict=True))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _unavailable(plan: ViewPlan, error: Exception) -> SinkUnavailableError | SinkRefusedError:
    # the library's own text can show values
    return SinkUnavailableError(
        f"view {plan.name}: its table cannot be read or written", detail=type(error).__name__
    )
