"""The tables of two versions of a view compared by Spark's tasks; see `versions.compared_by_job`.

Tasks read files of both tables and write hashes of the keys and of the rows, as for a comparison
with the source. Others count the keys at which the versions differ, part by part.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from projections.archive.rebuilding.task_errors import named_errors
from projections.common.delta_log import plain
from projections.common.pooled_memory import pooled_memory
from projections.errors import SinkUnavailableError
from projections.job import comparison
from projections.job.comparison import ComparisonRuns, flat, parts_of, require_equal_hashes
from projections.job.comparison_tasks import FILE_ROWS, TEXT, PartedFiles, TablePiece, pieces_of
from projections.stores.delta.row_hashes import RowHashes, new_seed
from projections.stores.delta.suspect_keys import LINES, uneven_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from projections.common.task_files import TaskFiles
    from projections.planning.job_config import JobConfig
    from projections.stores.delta.row_hashes import Hashes
    from projections.versions.bulk_requests import BulkVersions
    from projections.versions.version_pair import VersionPair

_HASHED: Final = pa.schema(
    [("files", pa.list_(pa.string())), ("excluded", pa.string()), ("text_hash", pa.int64())]
)
_MATCHED: Final = pa.schema([("differing", pa.int64())])


@dataclass(frozen=True, slots=True)
class EqualVersions:
    """The result of a comparison.

    Attributes:
        differing: Approximate number of keys at which the versions differ.
        excluded: Number of rows that only one of them has by definition, by reason.
    """

    differing: int
    excluded: Mapping[str, int]


class VersionComparison:
    """Compares the tables of two versions in a session.

    Args:
        session: The session.
        config: The job's configuration.
    """

    def __init__(self, session: SparkSession, config: JobConfig) -> None:
        self._runs = ComparisonRuns(session, config)
        self._tables = config.addresses.tables

    def compared(self, work: BulkVersions, on_progress: Callable[[], None]) -> EqualVersions:
        """Compares two versions.

        Args:
            work: The versions.
            on_progress: Called several times a second; an exception ends the comparison.

        Raises:
            SinkUnavailableError: A table cannot be read by files, or a task failed.
            RebuildSpaceError: A disk is full.
        """
        pair, parts, seed = work.pair, parts_of(work.rows_expected), new_seed()
        names: list[list[str]] = []
        hashed: list[pa.Table] = []
        with (
            named_errors(f"versions of view {pair.old.view} cannot be compared", self._runs.folder),
            self._runs.files(3) as (of_old, of_new, matched),
        ):
            sides = PartedFiles(of_old, parts), PartedFiles(of_new, parts)
            for side, files in enumerate(sides):
                task = HashVersion(
                    pair, side, self._pieces(work, side), work.keys, work.columns, files, seed
                )
                hashed.append(self._runs.run(task, len(task.pieces), on_progress))
                names.append(flat(hashed[-1], "files"))
            require_equal_hashes(*hashed)
            match = MatchVersions(sides, (names[0], names[1]), matched)
            found = self._runs.run(match, parts, on_progress)
        excluded: Counter[str] = Counter()
        for text in (each for results in hashed for each in flat(results, "excluded")):
            excluded.update(_EXCLUDED.decode(text))
        return EqualVersions(sum(flat(found, "differing")), dict(excluded))

    def _pieces(self, work: BulkVersions, side: int) -> tuple[TablePiece, ...]:
        plan = (work.pair.old, work.pair.new)[side]
        path = self._tables / plan.name
        table = DeltaTable(str(path), version=work.table_versions[side])
        if not plain(table):
            raise SinkUnavailableError(f"table {path.name} is not read by files")
        return pieces_of(table, path, comparison.PIECE_ROWS)


@dataclass(frozen=True, slots=True)
class HashVersion:
    """Hashes files of one version.

    Attributes:
        pair: The versions.
        side: Which of them: 0 for the old one, 1 for the new one.
        pieces: The files of each piece.
        keys: Columns that identify a row; empty to compare whole rows.
        columns: The other columns.
        files: Where the hashes go.
        seed: Seed of the hashes.
    """

    pair: VersionPair
    side: int
    pieces: tuple[TablePiece, ...]
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    files: PartedFiles
    seed: int
    result_schema: ClassVar = _HASHED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Hashes the files that it is given by the numbers of their pieces."""
        files = self.files.files
        with files.at_work(), pooled_memory():
            yield from files.pieces(batches, _HASHED, self._piece)

    def _piece(self, number: int) -> Mapping[str, Any]:
        shared, hashes = self.pair.shared_rows()[self.side], RowHashes(seed=self.seed)
        names: list[str] = []
        excluded: Counter[str] = Counter()
        buffered: list[tuple[Hashes, Hashes]] = []
        read = list(dict.fromkeys([*self.keys, *self.columns, *shared.reads]))
        for given in self.pieces[number].rows(read):
            batch, others = shared.passed(given)
            excluded += others
            keys = hashes.of(batch, self.keys or self.columns)
            buffered.append((keys, hashes.of(batch, self.columns, keys) if self.keys else keys))
            if sum(len(each) for each, _ in buffered) >= FILE_ROWS:
                names.append(self._written(buffered))
        if buffered:
            names.append(self._written(buffered))
        text = msgspec.json.encode(dict(excluded)).decode()
        return {"files": names, "excluded": text, "text_hash": hash(TEXT)}

    def _written(self, buffered: list[tuple[Hashes, Hashes]]) -> str:
        keys, rows = (np.concatenate(side) for side in zip(*buffered, strict=True))
        buffered.clear()
        lines = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(rows)], schema=LINES)
        return self.files.write(lines, keys)


@dataclass(frozen=True, slots=True)
class MatchVersions:
    """Counts the keys of parts at which the versions differ.

    Attributes:
        sides: The hashes of both versions.
        names: The files of each.
        files: The files of this run.
    """

    sides: tuple[PartedFiles, PartedFiles]
    names: tuple[Sequence[str], Sequence[str]]
    files: TaskFiles
    result_schema: ClassVar = _MATCHED

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Compares the parts that it is given by number."""
        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, _MATCHED, self._part)

    def _part(self, number: int) -> Mapping[str, Any]:
        lines = [
            side.read(names, number, LINES)
            for side, names in zip(self.sides, self.names, strict=True)
        ]
        return {"differing": len(np.unique(uneven_keys(lines)))}


_EXCLUDED: Final = msgspec.json.Decoder(dict[str, int])
