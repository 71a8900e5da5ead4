"""Records divided by key, so that one task can take all records of some keys.

The tasks read the records of blocks and write them to files of the shared folder, by the hash of
their keys. They also write the keys that are left to the replay, with all their records, because
the changes of the key do not decide its rows by themselves: one of its records keeps values, cannot
be read or is of an unusual form; a row came from it with kept values; or another form of it names
the same row. Truncates and records without a key are left as well.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cdc.table import ColumnKind
from cdc.values import UNCHANGED_MARKS
from projections.archive.fold import old_keys
from projections.archive.survey import by_topic, classified, flags, versions_of
from projections.changes.record import canonical
from projections.common.throttle import Throttle
from projections.job.rebuilding.fill_tasks import READ, planned_key
from projections.job.rebuilding.fold_tasks import pooled_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from projections.archive.fold import Flags, Integers
    from projections.archive.scan import ArchiveScan
    from projections.archive.survey import RecordFilter
    from projections.job.rebuilding.task_files import TaskFiles
    from projections.planning.view_plan import ViewPlan

DIVIDED: Final = pa.schema(
    [("file", pa.string()), ("filtered", pa.int64()), ("left", pa.list_(pa.int64()))]
)
DIVIDED_DDL: Final = "file string, filtered bigint, left array<bigint>"

DIVIDED_ROWS: Final = 200_000
"""Records that a first task holds at a time."""


ROW: Final = "row"
LEFT_KEY: Final = -1
"""Number of an entry that is no record, and names a key that is left."""

_TEXT: Final = r'"[^"\\\x00-\x1f]*"'
_VALUES: Final = {
    ColumnKind.BOOLEAN: "(?:true|false)",
    ColumnKind.INTEGER: r"(?:0|-?[1-9]\d{0,17})",
    ColumnKind.TEXT: _TEXT,
    ColumnKind.UUID: _TEXT,
}
"""Values of a key that have no other form in JSON."""

PART: Final = pa.schema(
    [
        (ROW, pa.int64()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("recorded_at", pa.timestamp("us", "UTC")),
        ("op", pa.string()),
        ("epoch", pa.int32()),
        ("lsn", pa.int64()),
        ("total_order", pa.int64()),
        ("committed_at", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("after", pa.string()),
        ("raw_value", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class DivideRecords:
    """Divides the records of blocks by the hash of their keys.

    Attributes:
        scan: The archive.
        plan: The view.
        topic: The topic.
        taken: Which records are taken.
        groups: Numbers of the first block of each task, and of the one after its last.
        buckets: Into how many parts keys are divided.
        files: Where it writes them.
        share: Of its time, how much the task takes at most.
    """

    scan: ArchiveScan
    plan: ViewPlan
    topic: str
    taken: RecordFilter
    groups: tuple[tuple[int, int], ...]
    buckets: int
    files: TaskFiles
    share: float = 1.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Divides the groups that it is given by number."""
        with self.files.at_work(), pooled_memory():
            yield from self.files.pieces(batches, DIVIDED, self._group)

    def _group(self, number: int) -> dict[str, Any]:
        throttle, left, filtered = Throttle(self.share), list[int](), 0
        waiting: list[pa.Table] = []
        with self.files.writing(PART) as (name, file):
            for own, rows in self._records(number):
                made, passed = self._divided(own, rows, left)
                waiting.append(made)
                filtered += passed
                if sum(map(len, waiting)) >= DIVIDED_ROWS:
                    self._write(file, waiting)
                throttle.step()
            self._write(file, waiting)
        return {"file": name, "filtered": filtered, "left": left}

    def _records(self, number: int) -> Iterator[tuple[pa.RecordBatch, Integers]]:
        """The records of a group that count, and their numbers in the archive."""
        for block in self.scan.blocks[slice(*self.groups[number])]:
            extra = [] if self.scan.only_tombstones(block) else ["source"]
            for first, batch in self.scan.read(["topic", *READ, "headers", *extra], [block]):
                for topic, chosen in by_topic(batch, [self.topic]):
                    rows = np.arange(first, first + batch.num_rows)
                    own = batch if chosen is None else batch.filter(pa.array(chosen))
                    rows = rows if chosen is None else rows[chosen]
                    there = self.taken.there(topic, own)
                    yield own.filter(pa.array(there)), rows[there]

    def _divided(
        self, batch: pa.RecordBatch, rows: Integers, left: list[int]
    ) -> tuple[pa.Table, int]:
        """Returns records with their keys and the keys that are left, and how many say nothing."""
        keyed, truncates, tombstones, named = classified(batch)
        loose = ~tombstones & (truncates | ~named)
        left += rows[loose].tolist()
        usual = flags(batch.column("raw_value").is_null())
        older = keyed & usual & (versions_of(batch) < self.plan.left_to_read)
        passed = tombstones | (older & ~loose)
        wanted = ~passed & ~loose
        chosen = batch.filter(pa.array(wanted))
        keys = self._left_keys(chosen, (keyed & usual)[wanted])
        records = pa.table(
            [pa.array(rows[wanted])]
            + [_plain(chosen.column(name)).cast(PART.field(name).type) for name in PART.names[1:]],
            schema=PART,
        )
        blank = {field.name: pa.nulls(len(keys), field.type) for field in PART}
        blank[ROW] = pa.array([LEFT_KEY] * len(keys), pa.int64())
        blank["key"] = pa.array(sorted(keys), pa.string())
        return pa.concat_tables([records, pa.table(blank, PART)]), int(passed.sum())

    def _left_keys(self, batch: pa.RecordBatch, readable: Flags) -> set[str]:
        """The keys that are left for one of these records."""
        if not batch.num_rows:
            return set()
        after = _plain(batch.column("after"))
        kept = np.zeros(batch.num_rows, np.bool_)
        for mark in UNCHANGED_MARKS:
            kept |= flags(pc.match_substring(after, mark.decode()))
        texts = _plain(batch.column("key"))
        strange = ~flags(pc.match_substring_regex(texts, _usual_key(self.plan)))
        for place in np.flatnonzero(strange).tolist():
            strange[place] = not planned_key(self.plan, texts[place].as_py().encode())
        found: set[str] = set()
        for place in np.flatnonzero(kept | ~readable | strange).tolist():
            text = texts[place].as_py()
            found.add(text)
            found |= self._other_forms(text, after[place].as_py())
        moved = batch.filter(pa.array(kept))
        if moved.num_rows:
            former = old_keys(moved.column("headers"), texts.filter(pa.array(kept)))
            for keys in former.values():
                found |= keys
                for key in keys:
                    found |= self._other_forms(key, None)
        return found

    def _other_forms(self, key: str, row: str | None) -> set[str]:
        """The forms under which records of the same row, or ones that wait with it, may come."""
        found = set()
        if (same := canonical(key.encode())) is not None:
            found.add(same.decode())
        for text in filter(None, (key, row)):
            try:
                fields = orjson.loads(text)
                planned = {name: fields[name] for name in self.plan.schema.key}
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
            found.add(orjson.dumps(planned).decode())
        return found

    def _write(self, file: pa.RecordBatchFileWriter, waiting: list[pa.Table]) -> None:
        """Writes one batch for each part, whether or not it has records."""
        if not waiting:
            return
        made = pa.concat_tables(waiting)
        waiting.clear()
        keys = made["key"].cast(pa.binary()).to_pylist()
        of_bucket = np.fromiter(map(crc32, keys), np.int64, len(keys)) % self.buckets
        order = np.argsort(of_bucket, kind="stable")
        ends = np.searchsorted(of_bucket[order], np.arange(1, self.buckets + 1))
        made, begin = made.take(pa.array(order)), 0
        for end in ends.tolist():
            part = made.slice(begin, end - begin).combine_chunks().to_batches()
            file.write_batch(part[0] if part else pa.RecordBatch.from_pylist([], PART))
            begin = end


def _usual_key(plan: ViewPlan) -> str:
    """A pattern of keys in the planned form; some others are in it, too. See `planned_key`."""
    by_name = plan.schema.by_name
    parts = [
        re.escape(f"{json.dumps(name, ensure_ascii=False)}:") + _VALUES[by_name[name].kind]
        for name in plan.schema.key
    ]
    return "^" + re.escape("{") + ",".join(parts) + re.escape("}") + "$"


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
