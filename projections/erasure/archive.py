"""Finds the records of keys in the archive, and erases them.

An erased record stays as a record without a value. The archive therefore has no gap, and a replay
skips it like any such record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from cdc.position import version_of
from projections.archive.fold import old_keys
from projections.archive.scan import ArchiveScan
from projections.archive.table import BLANK, archive_lock
from projections.common.table_pins import pinned_versions
from projections.erasure.residue import forget_past
from projections.errors import SinkUnavailableError
from projections.stores.delta.table_format import HOOKS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from cdc.lsn import Lsn

_PARTS: Final = ("before", "after", "raw_value")
_COLUMNS: Final = ("topic", "partition", "offset", "key", "epoch", "lsn", "source", *_PARTS)
_READ: Final = '"snapshot":"true"'


@dataclass(frozen=True, slots=True)
class Through:
    """The end of the range to forget.

    Attributes:
        epoch: Incarnation of the source.
        lsn: Log position; later changes stay.
    """

    epoch: int
    lsn: Lsn

    @property
    def version(self) -> int:
        """Returns the version up to which rows are forgotten."""
        return version_of(self.epoch, self.lsn.value)


class ReadKey(NamedTuple):
    """A record that a read of a key has sent.

    Attributes:
        text: The key, as records have it.
        partition: Partition of the record.
        offset: Its offset.
        alive: Whether the source has a row of the key.
    """

    text: str
    partition: int
    offset: int
    alive: bool


@dataclass(frozen=True, slots=True)
class ArchivedKeys:
    """The records of some keys in the archive.

    Attributes:
        texts: The keys, as records have them.
        former: Those of them under which rows were before they moved to the others.
        partitions: Partitions of the topic with records of them.
        records: Number of records with values.
    """

    texts: frozenset[str]
    former: frozenset[str]
    partitions: frozenset[int]
    records: int


class ArchivedTopic:
    """The records of one topic in the archive of its source."""

    def __init__(self, folder: Path, topic: str) -> None:
        self.topic = topic
        self._folder = folder

    def keys_read(self, epoch: int, read_lsn: Lsn) -> list[ReadKey]:
        """Returns the records that a read of keys has sent.

        Args:
            epoch: Incarnation of the source.
            read_lsn: Position of the read.
        """
        read: list[ReadKey] = []
        for batch in self._batches(("partition", "offset", "op", "key", "epoch", "lsn", "source")):
            own = pc.and_(
                pc.equal(batch.column("epoch"), epoch),
                pc.equal(batch.column("lsn"), read_lsn.value),
            )
            own = pc.and_(own, pc.match_substring(batch.column("source"), _READ))
            read += [
                ReadKey(row["key"], row["partition"], row["offset"], row["op"] != "d")
                for row in batch.filter(pc.fill_null(own, False)).to_pylist()
            ]
        return read

    def find(self, texts: Collection[str], through: Through) -> ArchivedKeys:
        """Finds keys, and the former keys of their rows."""
        olds = self._moves()
        wanted, ahead = set(texts), list(texts)
        while ahead:
            for old in olds.get(ahead.pop(), ()):
                if old not in wanted:
                    wanted.add(old)
                    ahead.append(old)
        partitions: set[int] = set()
        records = 0
        for batch in self._batches(_COLUMNS):
            rows = batch.filter(_of(batch, wanted, through))
            partitions.update(rows.column("partition").to_pylist())
            records += sum(
                any(row[name] is not None for name in _PARTS) for row in rows.to_pylist()
            )
        former = frozenset(wanted - set(texts))
        return ArchivedKeys(frozenset(wanted), former, frozenset(partitions), records)

    def rows(
        self, texts: Collection[str], through: Through, *, later: bool = False
    ) -> Iterator[tuple[str, Any]]:
        """Yields each row in the records of the keys, with its key.

        Args:
            texts: The keys.
            through: The end of the range.
            later: Whether to return later records instead.
        """
        for batch in self._batches(_COLUMNS):
            for row in batch.filter(_of(batch, texts, through, later=later)).to_pylist():
                for name in ("before", "after"):
                    if row[name] is not None:
                        yield row["key"], orjson.loads(row[name])

    def values_elsewhere(self, texts: Collection[str], values: Collection[str]) -> frozenset[str]:
        """Returns those of some values that records of other keys also have."""
        names = pa.array(sorted(texts), pa.string())
        elsewhere: set[str] = set()
        for batch in self._batches(("key", "before", "after")):
            others = pc.invert(pc.fill_null(pc.is_in(batch.column("key"), names), False))
            for name in ("before", "after"):
                column = batch.column(name).filter(others)
                for value in set(values) - elsewhere:
                    # as in JSON, where quotes are escaped
                    text = orjson.dumps(value).decode()[1:-1]
                    if pc.any(pc.match_substring(column, text)).as_py():
                        elsewhere.add(value)
        return frozenset(elsewhere)

    def erase(self, texts: Collection[str], through: Through) -> int:
        """Removes the values from the records of keys; returns the number of records.

        Args:
            texts: The keys.
            through: The end of the range; unreadable records are erased at any position.

        Raises:
            SinkUnavailableError: The archive cannot be written.
        """
        if not DeltaTable.is_deltatable(str(self._folder)):
            return 0
        keys = ", ".join(map(_quoted, sorted(texts)))
        blank = " AND ".join(f'"{name}" IS NULL' for name in (*_PARTS, "source"))
        predicate = (
            f'topic = {_quoted(self.topic)} AND "key" IN ({keys}) AND NOT ({blank})'
            f" AND (epoch IS NULL OR lsn IS NULL OR epoch < {through.epoch}"
            f" OR (epoch = {through.epoch} AND lsn <= {through.lsn.value}))"
        )
        try:
            with archive_lock(self._folder):
                metrics = DeltaTable(str(self._folder)).update(
                    dict.fromkeys(BLANK, "NULL"),
                    predicate=predicate,
                    post_commithook_properties=HOOKS,
                )
        except (DeltaError, OSError) as error:
            raise SinkUnavailableError(
                "the archive cannot be written", detail=type(error).__name__
            ) from None
        return int(metrics["num_updated_rows"])

    def forget_past(self) -> bool:
        """Removes the files of older versions; returns whether no reader uses one."""
        if not DeltaTable.is_deltatable(str(self._folder)):
            return True
        with archive_lock(self._folder):
            newest = DeltaTable(str(self._folder)).version()
            if any(version < newest for version in pinned_versions(self._folder)):
                return False
            forget_past(self._folder)
        return True

    def _moves(self) -> dict[str, set[str]]:
        """Returns the former keys of rows, by the new key."""
        former_keys: dict[str, set[str]] = {}
        for batch in self._batches(("key", "headers")):
            moved = old_keys(batch.column("headers"), batch.column("key"))
            for new, olds in moved.items():
                former_keys.setdefault(new, set()).update(olds)
        return former_keys

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        return ArchiveScan(self._folder, {self.topic}).records(columns)


def _of(
    batch: pa.RecordBatch, texts: Collection[str], through: Through, *, later: bool = False
) -> pa.Array:
    """Returns which records belong to some keys, up to a position or after it."""
    names = pa.array(sorted(texts), pa.string())
    epoch, lsn = batch.column("epoch"), batch.column("lsn")
    beyond = pc.or_(
        pc.greater(epoch, through.epoch),
        pc.and_(pc.equal(epoch, through.epoch), pc.greater(lsn, through.lsn.value)),
    )
    own = pc.is_in(batch.column("key"), names)
    beyond = pc.fill_null(beyond, False)
    return pc.and_(pc.fill_null(own, False), beyond if later else pc.invert(beyond))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
