"""The table sink: Delta tables, written and read without a JVM."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from msgspec import structs

from cdc.table import ColumnKind
from cdc.values import encoder
from projections.changes.reduced import missing_values
from projections.changes.row_batch import ROWS_AT_ONCE, shown
from projections.changes.row_change import (
    Applied,
    Refused,
    RowChange,
    completed_version,
    may_complete,
)
from projections.changes.sink import Holding
from projections.common.file_lock import WriterLock
from projections.definition.columns import BEGUN_AT_COLUMN, BEGUN_COLUMN, VERSION_COLUMN
from projections.errors import SinkRefusedError, SinkUnavailableError, UnholdableValueError
from projections.stores.delta import first_commit
from projections.stores.delta.arrow import (
    decoded_rows,
    deletes_schema,
    keys_table,
    row_part,
    rows_table,
    table_schema,
)
from projections.stores.delta.schema_migration import reshape
from projections.stores.delta.table_format import (
    CONFIGURATION,
    FEED,
    FLOOR,
    HOOKS,
    LOADED,
    maintain,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import ReadSpan
    from projections.planning.view_plan import ViewPlan


_DELETED: Final = "_headwater_deleted"
_ATTEMPTS: Final = 3


_T = TypeVar("_T")
logger = logging.getLogger(__name__)


class TableSink:
    """Keeps the live rows of a view in the Delta table `<root>/<view>`.

    Each row has its version in `_version`. Deletes are remembered, key and version, in a second
    table, `<root>/<view>.deleted`, which is written first: after a crash between the two, the
    batch is given again and finds its own deletes there. What `sweep` was given last is a property
    of the view's table, `headwater.floor`. A commit is on disk when `apply` returns. Each view is
    written under a lock that every writer on this machine respects.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tables: dict[str, DeltaTable] = {}
        self._deletes: dict[str, tuple[int, pa.Table]] = {}  # by table; its version, its rows

    def prepare(self, plan: ViewPlan) -> None:
        """Makes the view's two tables unless they are there; gives them the view's columns."""
        with self._locked(plan):
            for name, schema in self._both(plan):
                reshape(self._table(name, schema), schema, plan.older_names)
            self._feed(plan, self._table(plan.name, table_schema(plan)))

    @staticmethod
    def _feed(plan: ViewPlan, table: DeltaTable) -> None:
        """Has a table keep its changes from now on if others are made from them."""
        if not plan.feeds:
            return
        # a merge that keeps changes checks also what it leaves out: a delete of no row is all NULL
        for field in table.schema().fields:
            if not field.nullable:
                table.alter.drop_column_not_null(field.name)
        if FEED.items() - table.metadata().configuration.items():
            table.alter.set_table_properties(dict(FEED), raise_if_not_exists=False)

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes in at most two commits; see `Sink.apply`."""
        return self._committed(plan, lambda: self._apply(plan, changes)) if changes else Applied()

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the keys up in both tables; see `Sink.versions`."""
        return self._committed(plan, lambda: self._versions(plan, changes))

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[Holding]:
        """Looks the keys up in both tables, without the lock; see `Sink.stored`.

        The two are read one after the other. A batch writes its deletes first and is given again
        unless it has come to its end, so a row beside a newer delete is about to go.
        """
        try:
            return self._stored(plan, keys)
        except (DeltaError, OSError, pa.ArrowException) as error:  # other columns meanwhile
            self._tables.clear()
            raise unavailable(plan, error) from None

    def sweep(self, plan: ViewPlan, below_version: int, reads: Sequence[ReadSpan] = ()) -> int:
        """Notes the version in the table's properties, then removes rows; see `Sink.sweep`."""
        return self._committed(plan, lambda: self._sweep(plan, below_version, reads))

    def _committed(self, plan: ViewPlan, work: Callable[[], _T]) -> _T:
        """Does work under the view's lock, again if another writer came between."""
        with self._locked(plan):
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    return work()
                except CommitFailedError as error:
                    self._tables.clear()
                    if attempt == _ATTEMPTS:
                        raise unavailable(plan, error) from None
                except (DeltaError, OSError) as error:
                    self._tables.clear()
                    raise unavailable(plan, error) from None
        raise AssertionError  # the loop returns or raises

    def _versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        floor = max(0, self._floor(plan) - 1)
        if plan.append_only:
            return [floor] * len(changes)
        asked = [structs.replace(change, row=None, base=None) for change in changes]
        held, _ = _parted(plan, asked)
        wanted = keys_table(plan, held)
        live, deleted = self._live_rows(plan, wanted), self._deleted_versions(plan, wanted)
        places = zip(held, _keys_of(plan, wanted), strict=True)
        found = {
            change.key: max(live.get(place, (0,))[0], deleted.get(place, 0))
            for change, place in places
        }
        return [max(floor, found.get(change.key, 0)) for change in changes]

    def _stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[Holding]:
        floor, encode = max(0, self._floor(plan) - 1), encoder(plan.schema)
        held, _ = _parted(plan, [RowChange(key, 0, None, 0) for key in keys])
        wanted = keys_table(plan, held)
        places = dict(zip([each.key for each in held], _keys_of(plan, wanted), strict=True))
        rows: dict[tuple[object, ...], list[tuple[int, dict[str, object]]]] = {}
        for place, version, row in self._rows(plan, wanted):
            rows.setdefault(place, []).append((version, row))
        deleted = self._deleted_versions(plan, wanted)
        found = []
        for key in keys:
            place = places.get(key, ())  # one that a table cannot hold is not there
            live = rows.get(place, [])
            version = max([floor, deleted.get(place, 0), *(version for version, _ in live)])
            found.append(Holding(version, tuple(encode(row) for _, row in live)))
        return found

    def _sweep(
        self,
        plan: ViewPlan,
        below_version: int,
        reads: Sequence[ReadSpan],  # noqa: ARG002  # a history's
    ) -> int:
        if self._floor(plan) < below_version:
            # first: whoever writes after this takes nothing older
            self._table(plan.name, table_schema(plan)).alter.set_table_properties(
                {FLOOR: str(below_version)}, raise_if_not_exists=False
            )
        swept = []
        for name, schema in self._both(plan):
            table = self._table(name, schema)
            metrics = table.delete(
                f'"{VERSION_COLUMN}" < {below_version}', post_commithook_properties=HOOKS
            )
            swept.append(int(metrics["num_deleted_rows"]))
        return swept[0]

    def version(self, plan: ViewPlan) -> int:
        """Returns the newest version of the view's table.

        Raises:
            SinkUnavailableError: It cannot be read.
        """
        return self._committed(plan, lambda: self._table(plan.name, table_schema(plan)).version())

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row of the newest version; see `Sink.documents`."""
        return (document for _, document in self.versioned(plan))

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads every live row of the newest version; see `Sink.parts`."""
        try:
            dataset = self._table(plan.name, table_schema(plan)).to_pyarrow_dataset()
            names = shown(plan)
            for batch in dataset.to_batches(columns=list(names), batch_size=ROWS_AT_ONCE):
                yield row_part(plan, pa.Table.from_batches([batch]), names)
        except (DeltaError, OSError, pa.ArrowException) as error:  # other columns meanwhile
            raise unavailable(plan, error) from None

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every live row of the newest version, and its own; see `Sink.versioned`."""
        try:
            dataset = self._table(plan.name, table_schema(plan)).to_pyarrow_dataset()
            names = tuple(column.name for column in plan.schema.columns)
            for batch in dataset.to_batches(columns=[*names, VERSION_COLUMN]):
                versions = batch.column(VERSION_COLUMN).to_pylist()
                part = row_part(plan, pa.Table.from_batches([batch]), names)
                yield from zip(versions, part.documents(), strict=True)
        except (DeltaError, OSError, pa.ArrowException) as error:  # other columns meanwhile
            raise unavailable(plan, error) from None

    def deduplicate(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> int:
        """Leaves of the rows of a key the one with the greatest version; returns how many went.

        No writer of this kind makes two rows of a key. For a damaged table, in one commit.

        Raises:
            SinkUnavailableError: The table cannot be read or written.
        """
        return self._committed(plan, lambda: self._deduplicate(plan, keys))

    def close(self) -> None:
        """Forgets the open tables."""
        self._tables.clear()

    def _apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        try:
            return self._write(plan, changes)
        except UnholdableValueError:  # all is converted before anything is written
            held, refused = _parted(plan, changes)
            return self._write(plan, held) + Applied(refused=tuple(refused))

    def _deduplicate(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> int:
        table = self._table(plan.name, table_schema(plan))
        wanted = keys_table(plan, [RowChange(key, 0, None, 0) for key in keys])
        places = set(_keys_of(plan, wanted))
        found = _having(table.to_pyarrow_dataset().to_table(), plan, wanted)
        of_key = [key in places for key in _keys_of(plan, found)]
        rows = found.filter(pa.array(of_key, pa.bool_()))
        newest: dict[tuple[object, ...], tuple[int, int]] = {}
        versions = rows[VERSION_COLUMN].to_pylist()
        for number, (key, version) in enumerate(zip(_keys_of(plan, rows), versions, strict=True)):
            newest[key] = max(newest.get(key, (-1, 0)), (version, number))
        kept = rows.take(pa.array(sorted(number for _, number in newest.values()), pa.int64()))
        if kept.num_rows == rows.num_rows:
            return 0
        on = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in plan.keys)
        predicate = _among(plan, kept)
        if predicate is not None:
            write_deltalake(
                table,
                kept,
                mode="overwrite",
                predicate=predicate,
                post_commithook_properties=HOOKS,
            )
        else:
            # rows of such keys cannot be named in a condition: the read that follows brings them
            merger = table.merge(
                kept.select(list(plan.keys)), on, source_alias="s", target_alias="t"
            )
            merger.when_matched_delete().execute()
        return int(rows.num_rows - kept.num_rows)

    def _write(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        floor, loaded = self._number(plan, FLOOR), self._number(plan, LOADED)
        taken = [
            # one of no version says only when its row began
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

    def _write_latest(
        self, plan: ViewPlan, upserts: Sequence[RowChange], deletes: Sequence[RowChange]
    ) -> tuple[int, int, int]:
        """Returns the deletes remembered, the rows written and the bytes given."""
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
        """The same for a view whose rows say when they were inserted; see `beginning`.

        What that is of a key can come with any of its changes, those included that are too old to
        be written.
        """
        own = {change.key for change in (*upserts, *deletes)}
        own.update(each.change.key for each in refused)
        told = [first_commit.alone(c) for c in changes if c.begun and c.key not in own]
        found, remembered = self._remembered(plan, upserts), []
        for change, each in zip(upserts, found, strict=True):
            if each is not None and change.begun > each.begun:
                remembered.append(first_commit.alone(change))
        of_upserts = [each or first_commit.NOTHING for each in found]
        known = first_commit.known(upserts, of_upserts)
        pairs = list(zip(known, of_upserts, strict=True))
        told += [
            first_commit.alone(c) for c, each in pairs if each.version >= c.version and c.begun
        ]
        live = [change for change, each in pairs if each.version < change.version]
        deletes = self._as_begun(plan, deletes)
        remembered += deletes
        count = self._remember(plan, keys_table(plan, remembered)) if remembered else 0
        gone = keys_table(plan, [*deletes, *told]) if deletes or told else None
        return count, *self._merge(plan, rows_table(plan, live), gone)

    def _remembered(
        self, plan: ViewPlan, changes: Sequence[RowChange]
    ) -> list[first_commit.KeyState | None]:
        """What is remembered of the keys of changes; None of one that was never deleted."""
        wanted = keys_table(plan, changes)
        found = _having(self._every_delete(plan), plan, wanted)
        known = dict(
            zip(_keys_of(plan, found), first_commit.each_known(found, BEGUN_AT_COLUMN), strict=True)
        )
        return [known.get(place) for place in _keys_of(plan, wanted)]

    def _as_begun(self, plan: ViewPlan, deletes: Sequence[RowChange]) -> list[RowChange]:
        """Deletes with what is stored of when their rows began, of those that are only left out."""
        asked = [change for change in deletes if first_commit.leaves_out(change)]
        if not asked:
            return list(deletes)
        wanted = keys_table(plan, asked)
        names = [*plan.keys, VERSION_COLUMN, BEGUN_COLUMN, plan.inserted_at[0]]
        table = self._table(plan.name, table_schema(plan))
        stored: dict[tuple[object, ...], first_commit.KeyState] = {}
        for batch in table.to_pyarrow_dataset().to_batches(columns=names):
            found = _having(pa.Table.from_batches([batch]), plan, wanted)
            known = first_commit.each_known(found, plan.inserted_at[0])
            stored.update(zip(_keys_of(plan, found), known, strict=True))
        of_asked = [stored.get(place, first_commit.NOTHING) for place in _keys_of(plan, wanted)]
        others = [change for change in deletes if not first_commit.leaves_out(change)]
        return [*others, *first_commit.known(asked, of_asked)]

    def _remember(self, plan: ViewPlan, gone: pa.Table) -> int:
        table = self._table(f"{plan.name}.deleted", deletes_schema(plan))
        newer = f's."{VERSION_COLUMN}" > t."{VERSION_COLUMN}"'
        merger = self._merger(table, plan, gone)
        merger = (
            first_commit.remembering(merger, newer)
            if plan.inserted_at
            else merger.when_matched_update_all(newer)
        )
        metrics = merger.when_not_matched_insert_all().execute()
        maintain(table, self._root, f"{plan.name}.deleted")
        return int(metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"])

    def _without_deleted(self, plan: ViewPlan, rows: pa.Table) -> pa.Table:
        """Leaves out rows that were deleted after these changes."""
        if plan.append_only or not rows.num_rows:
            return rows
        deleted = self._deleted_versions(plan, rows)
        if not deleted:
            return rows
        places = zip(_keys_of(plan, rows), rows[VERSION_COLUMN].to_pylist(), strict=True)
        return rows.filter(pa.array([deleted.get(key, 0) < version for key, version in places]))

    def _merge(self, plan: ViewPlan, rows: pa.Table, gone: pa.Table | None) -> tuple[int, int]:
        """Writes rows and takes deleted ones out; returns rows written and bytes given."""
        table = self._table(plan.name, table_schema(plan))
        if gone is None and table.version() == 0:
            write_deltalake(table, rows, mode="append", post_commithook_properties=HOOKS)
            return rows.num_rows, rows.nbytes
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
            .when_not_matched_insert_all(f'NOT s."{_DELETED}"', except_cols=[_DELETED])
            .execute()
        )
        maintain(table, self._root, plan.name)
        written = metrics["num_target_rows_inserted"] + metrics["num_target_rows_updated"]
        return int(written), marked.nbytes

    def _complete(
        self, plan: ViewPlan, upserts: Sequence[RowChange]
    ) -> tuple[Sequence[RowChange], list[Refused]]:
        """Fills in unchanged values from the stored rows; the lock keeps those as they are."""
        partial = [change for change in upserts if change.kept]
        if not partial:
            return upserts, []
        own = keys_table(plan, partial)
        base = keys_table(plan, [_of_base(change) for change in partial])
        rows = self._live_rows(plan, pa.concat_tables([own, base]))
        deleted = self._deleted_versions(plan, own)
        places = zip(_keys_of(plan, own), _keys_of(plan, base), strict=True)
        completed = [change for change in upserts if not change.kept]
        refused, since = [], plan.kept_since
        for change, (place, base_place) in zip(partial, places, strict=True):
            if max(deleted.get(place, 0), rows.get(place, (0, {}))[0]) >= change.version:
                continue  # whatever it says, there is something newer
            version, stored = rows.get(base_place, (0, None))
            if stored is None or change.row is None or not may_complete(change, version, since):
                refused.append(Refused(change, missing_values(plan.schema, change.kept)))
            else:
                row = {**change.row, **{name: stored[name] for name in change.kept}}
                version = completed_version(change, version)
                whole = structs.replace(change, version=version, row=row, kept=(), base=None)
                completed.append(whole)
        return completed, refused

    def _floor(self, plan: ViewPlan) -> int:
        """Version below which the view takes no change any more."""
        return self._number(plan, FLOOR)

    def _number(self, plan: ViewPlan, name: str) -> int:
        table = self._table(plan.name, table_schema(plan))
        return int(table.metadata().configuration.get(name, "0"))

    def _deleted_versions(self, plan: ViewPlan, wanted: pa.Table) -> dict[tuple[object, ...], int]:
        """Versions of the remembered deletes among these keys."""
        found = _having(self._every_delete(plan), plan, wanted)
        return dict(zip(_keys_of(plan, found), found[VERSION_COLUMN].to_pylist(), strict=True))

    def _every_delete(self, plan: ViewPlan) -> pa.Table:
        name = f"{plan.name}.deleted"
        table = self._table(name, deletes_schema(plan))
        known = self._deletes.get(name)
        if known is None or known[0] != table.version():
            known = table.version(), table.to_pyarrow_dataset().to_table()
            self._deletes[name] = known
        return known[1]

    def _live_rows(
        self, plan: ViewPlan, wanted: pa.Table
    ) -> dict[tuple[object, ...], tuple[int, dict[str, object]]]:
        """Version and values of the stored rows among these keys."""
        return {place: (version, row) for place, version, row in self._rows(plan, wanted)}

    def _rows(
        self, plan: ViewPlan, wanted: pa.Table
    ) -> Iterator[tuple[tuple[object, ...], int, dict[str, object]]]:
        """Key, version and values of the stored rows among these keys."""
        table = self._table(plan.name, table_schema(plan))
        # not filtered while it is read: pyarrow fails on the statistics of texts
        for batch in table.to_pyarrow_dataset().to_batches():
            found = _having(pa.Table.from_batches([batch]), plan, wanted)
            if found.num_rows:
                versions = found[VERSION_COLUMN].to_pylist()
                rows = decoded_rows(plan, found)
                yield from zip(_keys_of(plan, found), versions, rows, strict=True)

    def _merger(self, table: DeltaTable, plan: ViewPlan, rows: pa.Table) -> Any:
        on = " AND ".join(f"t.{quoted(name)} = s.{quoted(name)}" for name in plan.keys)
        return table.merge(
            rows,
            on,
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so that files without these keys are skipped
            post_commithook_properties=HOOKS,
        )

    def _table(self, name: str, schema: pa.Schema) -> DeltaTable:
        table = self._tables.get(name)
        if table is None:
            path = str(self._root / name)
            if DeltaTable.is_deltatable(path):
                table = DeltaTable(path)
            else:
                table = DeltaTable.create(path, schema, configuration=dict(CONFIGURATION))
            self._tables[name] = table
        elif self._later(name, table).is_file():
            table.update_incremental()
        return table

    def _later(self, name: str, table: DeltaTable) -> Path:
        """The commit after the one that is known; it lies in the folder under its number."""
        return self._root / name / "_delta_log" / f"{table.version() + 1:020}.json"

    def _both(self, plan: ViewPlan) -> list[tuple[str, pa.Schema]]:
        tables = [(plan.name, table_schema(plan))]
        if not plan.append_only:
            tables.append((f"{plan.name}.deleted", deletes_schema(plan)))
        return tables

    def _locked(self, plan: ViewPlan) -> WriterLock:
        return WriterLock(self._root / f".{plan.name}.lock", wait=True)


def _updating(merger: Any, plan: ViewPlan, newer: str) -> Any:
    """Has newer rows take the place of those that there are; an event keeps its earliest times.

    Compaction moves it to another table, whose topic may even be read sooner than that of the log.
    """
    kept = f'NOT s."{_DELETED}"'
    times = [quoted(name) for name, _ in plan.times]
    every = {quoted(name): f"s.{quoted(name)}" for name in table_schema(plan).names}
    if plan.inserted_at:
        at = [quoted(name) for name in plan.inserted_at]
        return first_commit.updating(merger, every, at, f"{kept} AND {newer}")
    if plan.events is None or not times:
        return merger.when_matched_update_all(f"{kept} AND {newer}", except_cols=[_DELETED])
    earlier = {name: _earlier(name) for name in times}
    first = {n: f"CASE WHEN {sooner} THEN s.{n} ELSE t.{n} END" for n, sooner in earlier.items()}
    return merger.when_matched_update(every | first, f"{kept} AND {newer}").when_matched_update(
        first, f"{kept} AND ({' OR '.join(earlier.values())})"
    )


def _earlier(name: str) -> str:
    return f"(s.{name} < t.{name} OR (t.{name} IS NULL AND s.{name} IS NOT NULL))"


def _parted(plan: ViewPlan, changes: Sequence[RowChange]) -> tuple[list[RowChange], list[Refused]]:
    """Tells changes that a table can hold from those that it cannot."""
    try:
        if not plan.append_only:
            keys_table(plan, [change for change in changes if change.row is None])
            keys_table(plan, [_of_base(change) for change in changes if change.kept])
        rows_table(plan, [change for change in changes if change.row is not None])
    except UnholdableValueError as error:
        if len(changes) == 1:
            return [], [Refused(changes[0], error)]
        middle = len(changes) // 2
        held, refused = _parted(plan, changes[:middle])
        more_held, more_refused = _parted(plan, changes[middle:])
        return held + more_held, refused + more_refused
    return list(changes), []


def _of_base(change: RowChange) -> RowChange:
    return change if change.base is None else structs.replace(change, key=change.base)


def _having(table: pa.Table, plan: ViewPlan, wanted: pa.Table) -> pa.Table:
    """Rows that have one of the wanted keys, and perhaps more where a key has several columns."""
    first = plan.keys[0]
    values = wanted.column(first).combine_chunks()
    return table.filter(pc.is_in(table.column(first), value_set=values))


def _keys_of(plan: ViewPlan, table: pa.Table) -> list[tuple[object, ...]]:
    columns = [table.column(name).to_pylist() for name in plan.keys]
    return list(zip(*columns, strict=True))


def _among(plan: ViewPlan, rows: pa.Table) -> str | None:
    """Returns a condition that holds of rows with these keys; None where keys have no literals."""
    kinds = {plan.schema.by_name[name].kind for name in plan.keys}
    if not kinds <= {ColumnKind.INTEGER, ColumnKind.TEXT, ColumnKind.UUID, ColumnKind.BOOLEAN}:
        return None
    return " OR ".join(
        "("
        + " AND ".join(
            f"{quoted(name)} = {_literal(value)}"
            for name, value in zip(plan.keys, key, strict=True)
        )
        + ")"
        for key in _keys_of(plan, rows)
    )


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value).lower()


def quoted(name: str) -> str:
    """Returns a column's name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def unavailable(plan: ViewPlan, error: Exception) -> SinkUnavailableError | SinkRefusedError:
    """Returns the error for a table that cannot be read or written."""
    # the library's own text can show values
    return SinkUnavailableError(
        f"view {plan.name}: its table cannot be read or written", detail=type(error).__name__
    )
