"""The table of an initial load: makes it of the files that tasks have written, in one commit.

If the pieces were copied under several snapshots, a row that changed meanwhile may be in two of
them, or in none. All rows that may have changed were therefore copied once more under the last
snapshot: they replace the rows with their keys. A row of a key that is gone by then stays, twice
perhaps; the stream brings its delete, before the view is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from foundation.atomic_file import sync_files, sync_folder
from projections.common.delta_log import TableLog
from projections.stores.delta import key_equality
from projections.stores.delta.arrow import table_schema
from projections.stores.delta.table_format import (
    CONFIGURATION,
    LOADED,
    LOADED_AT,
    limits,
    writing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from projections.stores.delta.source_copy import SourceCopy

_TABLE: Final = "table"
_BEFORE: Final = "before"
_KEYS_AT_ONCE: Final = 1_000_000


class CopiedPieces(NamedTuple):
    """Small tables of pieces.

    Attributes:
        folder: Their folder.
        made: The name of each, and how many rows it has; see `load_tasks.LOADED`.
    """

    folder: Path
    made: pa.Table

    @property
    def tables(self) -> list[Path]:
        """Returns the folders of the tables."""
        return [self.folder / name for name in self.made["folder"].to_pylist()]

    @property
    def rows(self) -> int:
        """Returns how many rows they have."""
        return int(pc.sum(self.made["rows"]).as_py() or 0)


class CopiedRows(NamedTuple):
    """All rows of a table.

    Attributes:
        pieces: The pieces.
        changed: Rows that replace those with their keys.
        at: How far they may reach in the source's log, as a version.
    """

    pieces: CopiedPieces
    changed: CopiedPieces | None
    at: int


def make_table(source: SourceCopy, copied: CopiedRows) -> tuple[Path, int]:
    """Moves the files of pieces into one table.

    Args:
        source: The table that they were copied from.
        copied: Its rows.

    Returns:
        The folder of the table, and how many rows it has.
    """
    pieces, changed, at = copied
    tables, rows = pieces.tables, pieces.rows
    if changed is not None and changed.rows:
        before = _joined(source, pieces.folder / _BEFORE, tables)
        rows += changed.rows - _without(source, before, changed)
        tables = [before, *changed.tables]
    properties = {LOADED: str(source.version), LOADED_AT: str(at)}
    place = _joined(source, pieces.folder / _TABLE, tables, properties)
    sync_files(place / "_delta_log")
    sync_folder(place)
    return place, rows


def _joined(
    source: SourceCopy,
    place: Path,
    tables: Iterable[Path],
    properties: dict[str, str] | None = None,
) -> Path:
    """Makes a table of the files of others, which it moves."""
    schema = table_schema(source.plan)
    table = DeltaTable.create(
        str(place),
        schema,
        configuration={**CONFIGURATION, **limits(schema), **(properties or {})},
        raise_if_key_not_exists=False,
    )
    added: list[AddAction | RemoveAction] = []
    for folder in tables:
        for add in TableLog(folder).state(DeltaTable(str(folder)).version()).files.values():
            (folder / add["path"]).rename(place / add["path"])
            added.append(
                AddAction(add["path"], add["size"], {}, add["modificationTime"], True, add["stats"])
            )
    if added:
        table.create_write_transaction(added, "append", schema)
    return place


def _without(source: SourceCopy, place: Path, changed: CopiedPieces) -> int:
    """Removes the rows of a table whose keys changed rows have; returns how many."""
    keys = source.plan.keys
    removed = 0
    for some in _keys(changed, keys):
        merger = DeltaTable(str(place)).merge(
            some,
            key_equality.condition(some, keys),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            writer_properties=writing(table_schema(source.plan)),
        )
        removed += int(merger.when_matched_delete().execute()["num_target_rows_deleted"])
    sync_files(place)
    return removed


def _keys(changed: CopiedPieces, names: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the keys of changed rows, many at once."""
    held: list[pa.Table] = []
    for folder in changed.tables:
        for add in TableLog(folder).state(0).files.values():
            held.append(pq.read_table(folder / add["path"], columns=list(names)))
            if sum(each.num_rows for each in held) >= _KEYS_AT_ONCE:
                yield pa.concat_tables(held)
                held = []
    if held:
        yield pa.concat_tables(held)
