"""Derived delivery: copies the changes of a derived view's table into a store.

The table has a change feed. The changes between the version in the store and the published one are
applied key by key: the last change of a key counts, and its version is the published boundary.
Writing it twice, or late, therefore changes nothing. If the feed does not reach back that far, or
the store is new, all rows are written, and older ones are swept.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from cdc.errors import ValueDecodeError
from cdc.lsn import Lsn
from cdc.position import version_of
from projections.changes.quarantine.refused_rows import RefusedRow
from projections.changes.row_change import Applied, Refused, RowChange
from projections.definition.columns import VERSION_COLUMN
from projections.errors import FeedLostError, SinkUnavailableError
from projections.incremental.row_form import DerivedForm, derived_plan, key_of, misnamed, row_key
from projections.stores.delta.table_query import answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from foundation.errors import PlatformError
    from projections.changes.sink import Sink
    from projections.definition.views import DerivedView, Store
    from projections.incremental.row_form import KeyText
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan

COMMITS_MAX: Final = 200
"""Most commits whose changes are applied one by one; beyond, writing all rows costs less."""

_CHANGES_PER_WRITE: Final = 10_000
_TYPE: Final = "_change_type"
_COMMIT: Final = "_commit_version"


class DeliveredState(msgspec.Struct, frozen=True):
    """The delivered state of a derived view in a store.

    Attributes:
        table: Id of the view's table.
        version: Its version.
        epoch: Incarnation of the source for that boundary.
        lsn: The boundary, in bytes.
        form: The form in which rows are written; see `form_of`.
        place: Identity mark of the index or table in the store.
        refused: Rows that an earlier release counted instead of quarantining them.
    """

    table: str
    version: int
    epoch: int
    lsn: int
    form: str
    place: str
    refused: int = 0

    @property
    def number(self) -> int:
        """Returns the boundary as a row version."""
        return version_of(self.epoch, self.lsn)

    @property
    def boundary(self) -> Lsn:
        """Returns the boundary."""
        return Lsn(self.lsn)


_DELIVERED: Final = msgspec.json.Decoder(dict[str, DeliveredState])


def delivered_file(config: JobConfig, store: Store) -> Path:
    """Returns the file that records the delivered state of each derived view in a store."""
    return config.checkpoint(store).with_name(f"{store}.derived.json")


def delivered(config: JobConfig, store: Store) -> dict[str, DeliveredState]:
    """Returns the delivered state of each derived view in a store, by physical name."""
    try:
        content = delivered_file(config, store).read_bytes()
        return _DELIVERED.decode(content)
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError:  # damaged by a power cut: all rows are written again
        return {}


@dataclass(slots=True)
class Delivered:
    """The result of a delivery.

    Attributes:
        applied: Counts of what the store did.
        refused: Rows that it cannot hold.
        written: Keys that were quarantined, and that it has now.
        complete: Whether nothing was left out because too many rows were refused.
    """

    applied: Applied = field(default_factory=Applied)
    refused: list[RefusedRow] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class DerivedDelivery:
    """Updates a store to a version of a view's table.

    Attributes:
        tables: Folder of the tables.
        plan: The view.
        through: Version of its table.
        number: Its boundary, as a row version.
        after: Version in the store; None to write all rows and sweep older ones.
        quarantined: Keys, as JSON, that are quarantined.
        retried: Keys, as JSON, whose present rows are written instead of changes.
        refused_max: Refused rows after which the delivery ends.
    """

    tables: Path
    plan: ViewPlan
    through: int
    number: int
    after: int | None
    quarantined: frozenset[str] = frozenset()
    retried: frozenset[str] = frozenset()
    refused_max: int = sys.maxsize

    @property
    def writes_all(self) -> bool:
        """Whether all rows are written."""
        return self.after is None and not self.retried

    def deliver(self, sink: Sink) -> Delivered:
        """Writes the changes or rows; any part may be repeated.

        If more rows are refused than permitted, the rest is not written.

        Raises:
            FeedLostError: The feed does not cover the changes since; all rows must be written.
            SinkError: The store rejects all writes or cannot be reached, or the table cannot be
                read.
        """
        delivered, key_text = Delivered(), row_key(self.plan)
        for changes in self.changes():
            for start in range(0, len(changes), _CHANGES_PER_WRITE):
                part = changes[start : start + _CHANGES_PER_WRITE]
                self._apply(sink, part, delivered, key_text)
                if len(delivered.refused) > self.refused_max:
                    delivered.complete = False
                    return delivered
        if self.writes_all:
            sink.sweep(self.plan, self.number)
        return delivered

    def _apply(
        self, sink: Sink, changes: list[RowChange], delivered: Delivered, key_text: KeyText
    ) -> None:
        errors = [(change, misnamed(self.plan, change)) for change in changes]
        apart = tuple(Refused(change, error) for change, error in errors if error is not None)
        if apart:
            changes = [change for change, error in errors if error is None]
        applied = sink.apply(self.plan, changes) + Applied(refused=apart)
        refused = [
            RefusedRow(key_text(change.key), change.version, error)
            for change, error in self._still_stored(sink, applied.refused)
        ]
        if self.quarantined:
            keys = {key_text(change.key) for change in changes} & self.quarantined
            delivered.written |= keys - {each.key for each in refused}
        delivered.refused += refused
        delivered.applied += applied

    def _still_stored(
        self, sink: Sink, refused: Sequence[Refused]
    ) -> Iterator[tuple[RowChange, PlatformError]]:
        """Yields the refused changes without the deletes of rows that the store does not have."""
        deletes = [each.change.key for each in refused if each.change.row is None]
        stored = dict(zip(deletes, sink.stored(self.plan, deletes), strict=True)) if deletes else {}
        for each in refused:
            if each.change.row is not None or stored[each.change.key].documents:
                yield each.change, each.error

    def changes(self) -> Iterator[list[RowChange]]:
        """Yields the changes or rows to write, in parts.

        Raises:
            FeedLostError: The feed does not cover the changes since.
            SinkUnavailableError: The table cannot be read.
        """
        try:
            table = DeltaTable(str(self.tables / self.plan.name), version=self.through)
            if self.retried:
                yield from self._of_keys(table)
            elif self.after is None:
                yield from self._all(table)
            elif self.after < self.through:
                yield from self._between(table, self.after + 1)
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise SinkUnavailableError(
                f"view {self.plan.name}: its table cannot be read", detail=type(error).__name__
            ) from None

    def _all(
        self, table: DeltaTable, keep: Callable[[pa.Table], pa.Table] | None = None
    ) -> Iterator[list[RowChange]]:
        form = None
        for batch in answer(QueryBuilder().register("t", table), "SELECT * FROM t"):
            rows = pa.table(batch)
            if keep is not None:
                rows = keep(_plain_columns(rows))
            form = form or DerivedForm(self.plan, rows.schema)
            yield form.changes(rows, self.number)

    def _of_keys(self, table: DeltaTable) -> Iterator[list[RowChange]]:
        """Yields the present rows of the retried keys, and deletes of keys that have none."""
        key_text, missing = row_key(self.plan), dict[str, tuple[object, ...]]()
        for text in self.retried:
            with suppress(ValueDecodeError, KeyError):  # else it is no key of the present columns
                missing[text] = key_of(self.plan, text)
        first, values = self.plan.keys[0], [key[0] for key in missing.values()]

        def keep(rows: pa.Table) -> pa.Table:
            column = rows[first]
            return rows.filter(pc.is_in(column, value_set=pa.array(values, column.type)))

        for changes in self._all(table, keep):
            retried = [each for each in changes if key_text(each.key) in missing]
            yield retried
            for each in retried:
                del missing[key_text(each.key)]
        yield [RowChange(key, self.number, None, 0) for key in missing.values()]

    def _between(self, table: DeltaTable, first: int) -> Iterator[list[RowChange]]:
        try:
            read = table.load_cdf(starting_version=first, ending_version=self.through)
            changes = pa.RecordBatchReader.from_stream(read).read_all()
        except (DeltaError, OSError, pa.ArrowException) as error:
            raise FeedLostError(
                f"view {self.plan.name}: the change feed of its table has a gap",
                detail=f"since its version {self.after}: {type(error).__name__}",
                hint="all its rows are written again automatically",
            ) from None
        feed = _plain_columns(changes)
        form = DerivedForm(self.plan, feed.schema)
        rows, gone = last_changes(feed, self.plan.keys)
        yield form.changes(rows, self.number)
        yield form.deletes(gone, self.number)


def plan_at(config: JobConfig, view: DerivedView, version: int | None = None) -> ViewPlan:
    """Binds a derived view to the columns of its table at a version.

    Args:
        config: The job's configuration.
        view: The view, which has a table.
        version: Version of the table; None for its newest.

    Raises:
        PlanError: The options of the view do not fit its columns.
        DeltaError: The table cannot be read.
    """
    table = DeltaTable(str(config.addresses.tables / view.name), version=version)
    return derived_plan(view, config.source, pa.schema(table.schema().to_arrow()))


def last_changes(feed: pa.Table, keys: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """Reduces a feed to the last change of each key.

    Args:
        feed: Changes of a table, in any order.
        keys: Columns that identify a row.

    Returns:
        The present rows, and the keys of deleted ones.
    """
    last: dict[tuple[object, ...], tuple[int, bool, int]] = {}
    described = feed.select([_TYPE, _COMMIT]).to_pylist()
    for place, (key, change) in enumerate(zip(_names(feed, keys), described, strict=True)):
        # a commit that replaces a row lists the old one as deleted, or as the row before an update,
        # whose key has another form if `0.0` became `-0.0`
        present = change[_TYPE] not in {"delete", "update_preimage"}
        candidate = change[_COMMIT], present, place
        last[key] = max(candidate, last.get(key, (-1, False, 0)))
    there = [place for _, present, place in last.values() if present]
    gone = [place for _, present, place in last.values() if not present]
    columns = [name for name in feed.column_names if name not in (_TYPE, _COMMIT, VERSION_COLUMN)]
    return _rows_at(feed.select(columns), there), _rows_at(feed.select(list(keys)), gone)


def _names(rows: pa.Table, keys: Sequence[str]) -> list[tuple[object, ...]]:
    """Returns each row's key as stores tell keys apart: NaN equals itself, and -0.0 is not 0.0."""
    columns = [rows.column(name) for name in keys]
    floating = [pa.types.is_floating(each.type) for each in columns]
    names = (
        (each.cast(pa.string()) if is_float else each).to_pylist()
        for each, is_float in zip(columns, floating, strict=True)
    )
    return list(zip(*names, strict=True))


def _rows_at(rows: pa.Table, places: list[int]) -> pa.Table:
    return rows.take(pa.array(places, pa.int64()))


def _plain_columns(rows: pa.Table) -> pa.Table:
    return rows.cast(pa.schema([each.with_type(_plain(each.type)) for each in rows.schema]))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns a type that supports row selection: texts and bytes instead of their view types."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_plain(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return kind
