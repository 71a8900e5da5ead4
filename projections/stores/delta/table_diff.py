"""TableDifference: compares two versions of one table, or of two tables, row by row.

Files that both versions share have the same rows in both, so only the other files are read: those
written in between. They are read twice at most, however many rows there are: once to hash each row,
which leaves the keys whose rows may differ (`suspect_keys`), and once more for the rows of these
keys, which are compared exactly. These rows are matched one part of the keys at a time, so memory
is bounded regardless of the number of changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from projections.common.delta_log import plain
from projections.common.spill_file import SpillFile, by_part
from projections.definition.columns import BEGUN_COLUMN, ROW_ID_COLUMN, VERSION_COLUMN
from projections.errors import SinkUnavailableError
from projections.stores.delta.row_hashes import RowHashes
from projections.stores.delta.suspect_keys import SuspectKeys
from projections.stores.delta.table_query import answer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    import pyarrow.dataset as ds

    from projections.stores.delta.row_hashes import Hashes

ROWS_AT_ONCE: Final = 500_000
"""Approximate number of differing rows of both versions in memory at a time."""

_NOT_A_NUMBER: Final = "NaN"

Key = tuple[object, ...]
Row = tuple[object, ...]
EqualRows = Callable[[tuple[str, ...], tuple[str, ...]], "Counter[str] | None"]
"""Compares all rows by some keys and other columns. Returns the number of excluded rows by reason
if all others are equal; None if some differ, or if it does not know."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row that differs between the versions.

    Attributes:
        key: Its key, column by column.
        values: By column, the old and the new value.
    """

    key: Key
    values: dict[str, tuple[object, object]]


@dataclass(slots=True)
class TableDifference:
    """The difference between two versions of a table.

    Attributes:
        keys: Columns by which rows are matched.
        appeared: Number of rows whose key only the later version has.
        gone: Number of rows whose key only the earlier version has.
        changed: Number of rows that both have, with different values.
        by_column: How many of those differ in each column.
        columns_added: Columns that only the later version has; not compared.
        columns_gone: Columns that only the earlier version has; not compared.
        examples_appeared: Keys of some added rows.
        examples_gone: Keys of some removed rows.
        examples_changed: Some changed rows.
        excluded: Number of rows that were not compared, by reason; see `ComparedVersion.passing`.
    """

    keys: tuple[str, ...]
    appeared: int = 0
    gone: int = 0
    changed: int = 0
    by_column: Counter[str] = field(default_factory=Counter)
    columns_added: tuple[str, ...] = ()
    columns_gone: tuple[str, ...] = ()
    examples_appeared: list[Key] = field(default_factory=list)
    examples_gone: list[Key] = field(default_factory=list)
    examples_changed: list[ChangedRow] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)

    @property
    def same(self) -> bool:
        """Returns whether the versions are equal."""
        rows = self.appeared or self.gone or self.changed
        return not (rows or self.columns_added or self.columns_gone)


class PassedRows(NamedTuple):
    """The rows of a batch that are compared.

    Attributes:
        batch: The rows.
        excluded: Number of the others, by reason.
    """

    batch: pa.RecordBatch
    excluded: Counter[str]


@dataclass(frozen=True, slots=True)
class ComparedVersion:
    """One of two versions that are compared.

    Attributes:
        path: Folder of the table.
        version: Its version.
        passing: Filters the rows to compare; None compares all.
        reads: Columns that `passing` reads.
    """

    path: Path
    version: int
    passing: Callable[[pa.RecordBatch], PassedRows] | None = None
    reads: tuple[str, ...] = ()


def compare(
    path: Path, earlier: int, later: int, keys: Sequence[str] = (), *, examples_max: int = 10
) -> TableDifference:
    """Compares two versions of a table; see `compare_sides`."""
    sides = ComparedVersion(path, earlier), ComparedVersion(path, later)
    return compare_sides(*sides, keys, examples_max=examples_max)


def compare_sides(  # noqa: PLR0913  # two versions, and how they are compared
    earlier: ComparedVersion,
    later: ComparedVersion,
    keys: Sequence[str] = (),
    *,
    examples_max: int = 10,
    left_out: Collection[str] = (),
    equal: EqualRows | None = None,
) -> TableDifference:
    """Compares two versions.

    Args:
        earlier: A version of a table.
        later: Another version, of the same table or of another.
        keys: Columns that identify a row. If empty, whole rows are compared, each as often as it
            occurs, and none is reported as changed.
        examples_max: Number of examples of each kind.
        left_out: Columns that are not compared.
        equal: Finds out elsewhere whether all rows are equal; see `EqualRows`.

    Raises:
        SinkUnavailableError: One of them cannot be read.
    """
    excluded = {VERSION_COLUMN, BEGUN_COLUMN, *keys, ROW_ID_COLUMN, *left_out}
    try:
        before, after = _Version(earlier), _Version(later)
        same = earlier.path == later.path
        shared = before.files & after.files if same else frozenset[str]()
        common = [name for name in before.columns if name in set(after.columns)]
        columns = [name for name in common if name not in excluded]
        difference = TableDifference(
            tuple(keys),
            columns_added=tuple(n for n in after.columns if n not in common),
            columns_gone=tuple(n for n in before.columns if n not in common),
        )
        if not columns and not keys:
            return difference
        excluded_rows = None if equal is None else equal(tuple(keys), tuple(columns))
        if excluded_rows is not None:
            difference.excluded = excluded_rows
            return difference
        read = _Read(tuple(keys), tuple(columns), shared, RowHashes())
        suspects = SuspectKeys(before.hashes(read), after.hashes(read))
        difference.excluded = before.excluded + after.excluded
        if not suspects.rows:
            return difference
        parts = 1 + suspects.rows // ROWS_AT_ONCE
        with ExitStack() as stack:
            sides = [
                stack.enter_context(closing(_SuspectRows(side, read, suspects, parts)))
                for side in (before, after)
            ]
            for part in range(parts):
                comparison = _Comparison(difference, read.columns, examples_max)
                for key, row in sides[0].part(part):
                    comparison.before(key, row)
                for key, row in sides[1].part(part):
                    comparison.after(key, row)
                comparison.end()
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise SinkUnavailableError(
            "a version of a table cannot be read",
            detail=f"{later.path.name}: {type(error).__name__}",
        ) from None
    return difference


class _Comparison:
    """Compares the rows of one part of the keys."""

    def __init__(
        self, difference: TableDifference, columns: tuple[str, ...], examples_max: int
    ) -> None:
        self._difference = difference
        self._columns = columns
        self._max = examples_max
        self._unmatched: dict[Key, list[Row]] = {}

    def before(self, key: Key, row: Row) -> None:
        self._unmatched.setdefault(key, []).append(row)

    def after(self, key: Key, row: Row) -> None:
        """Pairs a row with a row of its key, an equal one if possible."""
        candidates = self._unmatched.get(key)
        if not candidates:
            self._difference.appeared += 1
            self._note(self._difference.examples_appeared, key)
            return
        place = candidates.index(row) if row in candidates else 0
        old = candidates.pop(place)
        if not candidates:
            del self._unmatched[key]
        if old != row:
            self._changed(key, old, row)

    def end(self) -> None:
        for key, rows in self._unmatched.items():
            self._difference.gone += len(rows)
            for _ in rows:
                self._note(self._difference.examples_gone, key)

    def _changed(self, key: Key, old: Row, new: Row) -> None:
        values = {
            name: (was, now)
            for name, was, now in zip(self._columns, old, new, strict=True)
            if was != now
        }
        self._difference.changed += 1
        self._difference.by_column.update(values.keys())
        self._note(self._difference.examples_changed, ChangedRow(key, values))

    def _note(self, examples: list[Any], example: object) -> None:
        if len(examples) < self._max:
            examples.append(example)


class _Version:
    """One version of a table."""

    def __init__(self, side: ComparedVersion) -> None:
        self.excluded: Counter[str] = Counter()
        self._side = side
        self._table = DeltaTable(str(side.path), version=side.version)
        self.columns = [each.name for each in self._table.schema().fields]
        actions = pa.table(self._table.get_add_actions(flatten=True))
        self.plain = plain(self._table)
        # by the full name: a file with a deletion vector is not equal to the file without it
        paths: list[str] = actions["path"].to_pylist() if self.plain else []
        self.files = frozenset(paths)

    def hashes(self, read: _Read) -> Iterator[tuple[Hashes, Hashes]]:
        """Reads all rows; yields hashes of their keys and of the rows, some thousand at a time."""
        for given in self._batches(read):
            batch, excluded = self._passed(given)
            self.excluded += excluded
            keys = read.keys_of(batch)
            yield keys, read.hashes.of(batch, read.columns, keys) if read.keys else keys

    def suspects(
        self, read: _Read, suspects: SuspectKeys
    ) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
        """Reads the rows of suspect keys; yields them with the hashes of their keys."""
        for batch in self._batches(read):
            rows = batch.filter(pa.array(suspects.among(read.keys_of(batch))))
            if rows.num_rows:
                rows, _ = self._passed(rows)
                yield rows.select(read.names), read.keys_of(rows)

    def _passed(self, batch: pa.RecordBatch) -> PassedRows:
        passing = self._side.passing
        return PassedRows(batch, Counter()) if passing is None else passing(batch)

    def _batches(self, read: _Read) -> Iterator[pa.RecordBatch]:
        names = list(dict.fromkeys([*read.names, *self._side.reads]))
        if not self.plain:
            chosen = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
            engine = QueryBuilder().register("rows", self._table)
            rows = answer(engine, f"SELECT {chosen} FROM rows")  # noqa: S608  # quoted
            stored = pa.schema(self._table.schema().to_arrow())
            schema = pa.schema([stored.field(name) for name in names])
            for batch in rows:
                yield batch.cast(schema)  # the engine's views of texts cannot be filtered
            return
        dataset: ds.Dataset = self._table.to_pyarrow_dataset()
        for fragment in dataset.get_fragments():
            if not any(fragment.path.endswith(name) for name in read.without):
                yield from fragment.to_batches(schema=dataset.schema, columns=names)


@dataclass(frozen=True, slots=True)
class _Read:
    """What is read of both versions.

    Attributes:
        keys: Columns that identify a row; empty if whole rows are compared.
        columns: The other columns.
        without: Files that both versions have.
        hashes: How rows are hashed.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    without: frozenset[str]
    hashes: RowHashes

    @property
    def names(self) -> list[str]:
        return [*self.keys, *self.columns]

    def keys_of(self, batch: pa.RecordBatch) -> Hashes:
        """Returns the hashes of keys; of whole rows if nothing identifies these."""
        return self.hashes.of(batch, self.keys or self.columns)

    def rows_of(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, Row]]:
        taken = [_comparable(batch.column(name)) for name in self.names]
        for values in zip(*taken, strict=True):
            many = len(self.keys) or len(values)
            yield values[:many], values[many:]


class _SuspectRows:
    """The rows of suspect keys in one version, part by part; the owner must close it.

    They are read from the table once: several parts are divided on disk.
    """

    def __init__(self, side: _Version, read: _Read, suspects: SuspectKeys, parts: int) -> None:
        self._read = read
        self._batches = side.suspects(read, suspects)
        self._parts = parts
        self._file: SpillFile | None = None

    def part(self, number: int) -> Iterator[tuple[Key, Row]]:
        """Yields the rows of a part; parts are read in their order."""
        if self._parts == 1:
            batches: Iterator[pa.RecordBatch] = (batch for batch, _ in self._batches)
        else:
            self._divide()
            batches = iter(() if self._file is None else self._file.read(number).to_batches())
        for batch in batches:
            yield from self._read.rows_of(batch)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _divide(self) -> None:
        for batch, keys in self._batches:  # empty from the second part on
            self._file = self._file or SpillFile(batch.schema)
            for part, rows in by_part(batch, keys, self._parts):
                self._file.add(part, rows)


def _comparable(column: pa.Array) -> list[object]:
    """Makes values hashable and comparable: nested ones become tuples."""
    values: list[object] = column.to_pylist()
    if pa.types.is_nested(column.type) or pa.types.is_floating(column.type):
        return [_hashable(value) for value in values]
    return values


def _hashable(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return _NOT_A_NUMBER  # NaN, equal to itself here
    if isinstance(value, dict):
        return tuple((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value
