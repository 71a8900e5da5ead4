"""ArchiveScan: one version of an archive, read file by file in bounded memory.

It opens only files that may have a wanted topic, by the table's statistics, and reads only the
requested columns. Row numbers are the same in every pass over one version, so a pass can read the
rows that an earlier one chose.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from projections.archive.table import DAY, SCHEMA
from projections.errors import ArchiveMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import date
    from pathlib import Path

    from numpy.typing import NDArray

BATCH_ROWS: Final = 32_768
_FEW_WORDS: Final = ("topic", "op")


class ArchiveMark(NamedTuple):
    """The identity of a version of an archive.

    Attributes:
        version: Number of the version.
        files: A digest of its files: after a restore to an earlier state, version numbers repeat.
    """

    version: int
    files: str


@dataclass(frozen=True, slots=True)
class Block:
    """A row group of a file.

    Attributes:
        path: The file.
        group: Number of the row group in it.
        first: Number of its first row.
        rows: How many it has.
    """

    path: Path
    group: int
    first: int
    rows: int


class ArchiveScan:
    """Reads one version of an archive.

    Args:
        archive: Folder of the archive.
        topics: Topics whose records are wanted; None for all.
        version: Version of the table; None for the newest.
        since: First arrival day of wanted records; None for all.
        beyond: A version whose files are skipped; None for none. Files never change, so newer
            records are in other files, together with older ones if files were merged.

    Raises:
        ArchiveMissingError: The archive, this version of it or `beyond` does not exist.
    """

    def __init__(
        self,
        archive: Path,
        topics: Collection[str] | None,
        *,
        version: int | None = None,
        since: date | None = None,
        beyond: ArchiveMark | None = None,
    ) -> None:
        path = str(archive)
        try:
            if not DeltaTable.is_deltatable(path):
                raise ArchiveMissingError(
                    "the source has no archive", hint="headwater up begins one"
                )
            table = DeltaTable(path, version=version)
            actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            known = _paths(path, beyond)
        except (DeltaError, OSError) as error:
            raise ArchiveMissingError(
                "the archive cannot be read", detail=type(error).__name__
            ) from None
        self.version = table.version()
        self.topics = frozenset(topics or ())
        self._paths = [action["path"] for action in actions]
        wanted = [
            action
            for action in actions
            if action["path"] not in known and _may_have(action, topics, since)
        ]
        wanted.sort(key=lambda action: (action[f"partition.{DAY}"], *_age(action)))
        self._files = [archive / unquote(action["path"]) for action in wanted]
        self._known_blocks: list[Block] | None = None

    @property
    def mark(self) -> ArchiveMark:
        """Returns the identity of the version."""
        return ArchiveMark(self.version, _digest(self._paths))

    @property
    def blocks(self) -> list[Block]:
        """Returns its row groups, in the order in which their files were added."""
        if self._known_blocks is None:
            self._known_blocks, first = [], 0
            for path in self._files:
                with _opened(path) as file:
                    for group in range(file.metadata.num_row_groups):
                        rows = file.metadata.row_group(group).num_rows
                        self._known_blocks.append(Block(path, group, first, rows))
                        first += rows
        return self._known_blocks

    @property
    def rows(self) -> int:
        """Returns the number of rows of its files, including other topics."""
        return sum(block.rows for block in self.blocks)

    def read(
        self, columns: Sequence[str], blocks: Sequence[Block] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields batches of rows, each with the number of its first row.

        Args:
            columns: The columns to read.
            blocks: The blocks to read; None for all.
        """
        for block in self.blocks if blocks is None else blocks:
            first = block.first
            with _opened(block.path) as file:
                for batch in _batches(file, block, columns):
                    yield first, _plain(batch)
                    first += batch.num_rows

    def records(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the records of its topics.

        This module filters them, not the file reader: a rewritten file has texts of a type that
        pyarrow's datasets cannot compare.

        Args:
            columns: The columns to read.
        """
        wanted = pa.array(sorted(self.topics), pa.string())
        names = list(dict.fromkeys(("topic", *columns)))
        for _, batch in self.read(names):
            own = pc.is_in(_undone(batch.column("topic")), wanted)
            if pc.any(own).as_py():
                chosen = batch.filter(own).select(list(columns))
                yield pa.RecordBatch.from_arrays(
                    [_undone(column) for column in chosen.columns], names=list(columns)
                )

    def numbers(
        self, columns: Sequence[str], condition: Callable[[pa.RecordBatch], pa.Array]
    ) -> NDArray[np.int64]:
        """Returns the numbers of those rows of its topics that meet a condition, ascending.

        Args:
            columns: The columns that the condition needs.
            condition: Takes rows of its topics, and returns a boolean for each.
        """
        wanted = pa.array(sorted(self.topics), pa.string())
        names = list(dict.fromkeys(("topic", *columns)))
        found = [np.empty(0, np.int64)]
        for first, batch in self.read(names):
            own = np.flatnonzero(pc.is_in(_undone(batch.column("topic")), wanted))
            if len(own):
                met = condition(batch.take(pa.array(own)))
                found.append(first + own[np.asarray(pc.fill_null(met, False))])
        return np.concatenate(found)

    def chosen(
        self, columns: Sequence[str], rows: NDArray[np.int64]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields the rows with some numbers; blocks without any are not read.

        Args:
            columns: The columns to read.
            rows: The row numbers, ascending.

        Yields:
            The number of finished blocks, and rows.
        """
        for number, block in enumerate(self.blocks):
            start, end = np.searchsorted(rows, (block.first, block.first + block.rows))
            if start == end:
                continue
            for first, batch in self.read(columns, [block]):
                low, high = np.searchsorted(rows, (first, first + batch.num_rows))
                if low < high:
                    yield number, batch.take(pa.array(rows[low:high] - first))

    def only_tombstones(self, block: Block) -> bool:
        """Returns whether statistics prove that every row of a block is a tombstone.

        A tombstone has neither an operation nor a source nor a raw value. Where no row has a raw
        value, each that has an operation has a source.
        """
        with _opened(block.path) as file:
            nulls = _nulls(file.metadata.row_group(block.group), ("op", "source", "raw_value"))
        if nulls.get("op") == 0:
            return True
        return nulls.get("raw_value") == block.rows and nulls.get("op") == nulls.get("source", -1)


def newest_version(archive: Path) -> int:
    """Returns the number of an archive's newest version.

    Raises:
        ArchiveMissingError: There is none, or it cannot be read.
    """
    try:
        return int(DeltaTable(str(archive)).version())
    except (DeltaError, OSError) as error:
        raise ArchiveMissingError(
            "the archive cannot be read", detail=type(error).__name__
        ) from None


def _paths(archive: str, mark: ArchiveMark | None) -> frozenset[str]:
    """Returns the files of a version.

    Raises:
        ArchiveMissingError: The archive was replaced.
    """
    if mark is None:
        return frozenset()
    actions = pa.table(DeltaTable(archive, version=mark.version).get_add_actions(flatten=True))
    paths: list[str] = actions.column("path").to_pylist()
    if _digest(paths) != mark.files:
        raise ArchiveMissingError(
            "the archive was replaced since it was read", detail=f"version {mark.version}"
        )
    return frozenset(paths)


def _digest(paths: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(paths)).encode()).hexdigest()


def _nulls(group: Any, names: Collection[str]) -> dict[str, int]:
    null_counts = {}
    for number in range(group.num_columns):
        column = group.column(number)
        statistics = column.statistics if column.path_in_schema in names else None
        if statistics is not None and statistics.has_null_count:
            null_counts[column.path_in_schema] = statistics.null_count
    return null_counts


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, read_dictionary=list(_FEW_WORDS), pre_buffer=False)
    except FileNotFoundError:
        raise  # usually an older version of the archive: the caller continues with the newest
    except (pa.ArrowException, OSError):
        raise _unreadable(path) from None


def _batches(
    file: pq.ParquetFile, block: Block, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(BATCH_ROWS, row_groups=[block.group], columns=list(columns))
    except (pa.ArrowException, OSError):
        raise _unreadable(block.path) from None


def _unreadable(path: Path) -> ArchiveMissingError:
    return ArchiveMissingError(
        "a file of the archive cannot be read",
        detail=f"{path.parent.name}/{path.name}",
        hint="put the file back from a backup; or headwater view rebuild --from-source",
    )


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Converts rows to the archive's own types: a rewritten file has those of its engine."""
    names, columns = batch.schema.names, list(batch.columns)
    foreign = [
        place for place, column in enumerate(columns) if not pa.types.is_dictionary(column.type)
    ]
    for place in foreign:
        columns[place] = columns[place].cast(SCHEMA.field(names[place]).type)
    return pa.RecordBatch.from_arrays(columns, names=names)


def _undone(column: pa.Array) -> pa.Array:
    """Returns a column without dictionary encoding."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _may_have(action: dict[str, Any], topics: Collection[str] | None, since: date | None) -> bool:
    day = action[f"partition.{DAY}"]
    if since is not None and day < since:
        return False
    least, most = action.get("min.topic"), action.get("max.topic")
    if topics is None or least is None or most is None:
        return True
    # statistics of long texts may be truncated
    return any(least <= topic and topic[: len(most)] <= most for topic in topics)


def _age(action: dict[str, Any]) -> tuple[Any, ...]:
    return action["modification_time"], action.get("min.offset") or 0, action["path"]
