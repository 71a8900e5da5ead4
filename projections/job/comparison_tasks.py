"""Tasks that compare a mirror's table with its source, for tables of many millions of rows.

They do what `verification.column_pass` does in one process. First, each task reads ranges of the
source along the key; then each reads files of the table. They write the key of each row, with a
hash of it and of the row, to files in the folder of the run, each in as many parts as all others.
Last, each task reads some parts of all files, and returns the keys that differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import psycopg
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from projections.changes.row_batch import source_columns
from projections.common.fault import kind_and_place
from projections.common.pooled_memory import pooled_memory
from projections.common.spill_file import by_part
from projections.errors import SinkUnavailableError, VerificationError
from projections.stores.delta.row_hashes import RowHashes
from projections.verification import source_rows
from projections.verification.hashed_batches import HashedBatches, key_schema, key_texts
from projections.verification.key_filter import differing_keys, hash_batch, hash_schema
from projections.verification.source_batches import SourceBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from cdc.snapshot.progress import KeyRange
    from projections.common.task_files import TaskFiles
    from projections.planning.view_plan import ViewPlan
    from projections.verification.key_filter import Numbers

FILE_ROWS: Final = 1_000_000
"""Rows of a file of hashes, at most, which a task buffers: some 30 bytes each, and their keys."""

HASHED: Final = pa.schema(
    [
        ("files", pa.list_(pa.string())),
        ("rows", pa.int64()),
        ("withheld", pa.int64()),
        ("text_hash", pa.int64()),
    ]
)
"""What a task returns of a piece: its files, the rows in them, the rows that the view excludes, and
how its process hashes a text, which has to be the same everywhere."""

DIFFERING: Final = pa.schema([("keys", pa.list_(pa.string())), ("differing", pa.int64())])
"""What a task returns of a part: the texts of the keys that differ, unless there are too many, and
their number."""

TEXT: Final = "a text"
"""What all processes have to hash equally."""


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Some files of a table.

    Attributes:
        path: The table.
        version: Its version.
        names: The names of the files.
    """

    path: Path
    version: int
    names: frozenset[str]

    def rows(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Reads the rows of the files.

        Raises:
            SinkUnavailableError: A file cannot be read, or is gone.
        """
        left = set(self.names)
        try:
            dataset = DeltaTable(str(self.path), version=self.version).to_pyarrow_dataset()
            for fragment in dataset.get_fragments():
                name = _file_name(fragment.path)
                if name in left:
                    left.remove(name)
                    yield from fragment.to_batches(schema=dataset.schema, columns=list(columns))
        except (DeltaError, FileNotFoundError, pa.ArrowException) as error:
            raise SinkUnavailableError(
                f"table {self.path.name} cannot be read", detail=kind_and_place(error)
            ) from None
        if left:
            raise SinkUnavailableError(f"files of table {self.path.name} are gone")


def pieces_of(table: DeltaTable, path: Path, rows: int) -> tuple[TablePiece, ...]:
    """Divides the files of a table into pieces.

    Args:
        table: The table.
        path: Its folder.
        rows: Approximate number of rows of a piece.
    """
    actions = pa.table(table.get_add_actions(flatten=True))
    pieces: list[set[str]] = [set()]
    taken = 0
    for name, count in zip(
        actions["path"].to_pylist(), actions["num_records"].to_pylist(), strict=True
    ):
        if taken >= rows:
            pieces.append(set())
            taken = 0
        pieces[-1].add(_file_name(name))
        taken += rows if count is None else count
    return tuple(TablePiece(path, table.version(), frozenset(names)) for names in pieces)


def _file_name(path: str) -> str:
    """Returns the name of a file of a table, which is unique in it."""
    return path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class PartedFiles:
    """Files of hashes, each in the same number of parts.

    Attributes:
        files: The files of a run of tasks.
        parts: Number of parts of each file.
    """

    files: TaskFiles
    parts: int

    def write(self, batch: pa.RecordBatch, hashes: NDArray[np.integer[Any]]) -> str:
        """Writes a file, divided by hashes of the keys; returns its name."""
        parts = dict(by_part(batch, hashes, self.parts))
        with self.files.writing(batch.schema) as (name, file):
            for number in range(self.parts):
                file.write_batch(parts.get(number, batch.slice(0, 0)))
        return name

    def read(self, names: Sequence[str], number: int, schema: pa.Schema) -> pa.Table:
        """Reads a part of files."""
        batches = []
        for name in names:
            with pa.ipc.open_file(str(self.files.folder / name)) as file:
                batches.append(file.get_batch(number))
        return pa.Table.from_batches(batches, schema)


@dataclass(frozen=True, slots=True)
class HashedParts:
    """Where the hashes of one side are, and how they are made.

    Attributes:
        plan: The view.
        files: The files.
        seed: Seed of the hashes.
    """

    plan: ViewPlan
    files: PartedFiles
    seed: int

    def hashed(self, batches: Iterable[pa.RecordBatch]) -> dict[str, Any]:
        """Writes the hashes of rows; returns what `HASHED` says of them.

        Raises:
            SinkUnavailableError: The rows do not have the types of the view's present columns.
        """
        schema, names = hash_schema(key_schema(self.plan)), list[str]()

        def write(keys: Sequence[pa.Array], places: Numbers, rows: Numbers) -> None:
            names.append(self.files.write(hash_batch(schema, keys, places, rows), places))

        hashes = RowHashes(signed_zeros=True, seed=self.seed)
        side = HashedBatches(self.plan, hashes, write, FILE_ROWS)
        for batch in batches:
            if not side.suits(batch):
                raise SinkUnavailableError(
                    f"view {self.plan.name}: its table has the types of earlier columns"
                )
            side.add(batch)
        side.write()
        return {"files": names, "rows": side.rows, "withheld": 0, "text_hash": hash(TEXT)}

    def part(self, names: Sequence[str], number: int) -> pa.Table:
        """Reads a part of files."""
        return self.files.read(names, number, hash_schema(key_schema(self.plan)))


@dataclass(frozen=True, slots=True)
class HashSource:
    """Hashes ranges of the source.

    Attributes:
        into: Where the hashes go.
        ranges: The ranges.
        dsn: The source.
        salt: Salt of hashed columns.
    """

    into: HashedParts
    ranges: tuple[KeyRange, ...]
    dsn: str = field(repr=False)
    salt: str | None = field(default=None, repr=False)
    result_schema: ClassVar = HASHED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Hashes the ranges that it is given by number, over one connection."""
        files = self.into.files.files
        with (
            files.at_work(),
            pooled_memory(),
            source_rows.session_of(self.dsn, self.salt) as connection,
        ):
            yield from files.pieces(batches, HASHED, partial(self._piece, connection))

    def _piece(self, connection: psycopg.Connection[Any], number: int) -> Mapping[str, Any]:
        source = SourceBatches(connection, self.into.plan, self.ranges[number])
        try:
            hashed = self.into.hashed(source.all())
        except psycopg.Error as error:
            raise VerificationError(
                "the source cannot be read", detail=error.sqlstate or type(error).__name__
            ) from None
        return hashed | {"withheld": source.withheld}


@dataclass(frozen=True, slots=True)
class HashTable:
    """Hashes files of the view's table.

    Attributes:
        into: Where the hashes go.
        pieces: The files of each piece.
    """

    into: HashedParts
    pieces: tuple[TablePiece, ...]
    result_schema: ClassVar = HASHED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Hashes the files that it is given by the numbers of their pieces."""
        files = self.into.files.files
        with files.at_work(), pooled_memory():
            yield from files.pieces(batches, HASHED, self._piece)

    def _piece(self, number: int) -> Mapping[str, Any]:
        columns = source_columns(self.into.plan)
        return self.into.hashed(self.pieces[number].rows(columns))


@dataclass(frozen=True, slots=True)
class MatchParts:
    """Compares parts of both sides.

    Attributes:
        sides: Those of the source, and of the table.
        names: The files of each side.
        files: The files of this run.
        keys_max: Most keys of a part that are returned.
    """

    sides: tuple[HashedParts, HashedParts]
    names: tuple[Sequence[str], Sequence[str]]
    files: TaskFiles
    keys_max: int
    result_schema: ClassVar = DIFFERING

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compares the parts that it is given by number."""
        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, DIFFERING, self._part)

    def _part(self, number: int) -> Mapping[str, Any]:
        source, table = (
            side.part(names, number) for side, names in zip(self.sides, self.names, strict=True)
        )
        found = differing_keys(source, table)
        keys = sorted(set(key_texts(self.sides[0].plan, found)))
        return {"keys": keys if len(keys) <= self.keys_max else [], "differing": len(keys)}
