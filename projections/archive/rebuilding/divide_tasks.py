"""Records divided by key, so that one task can take all records of some keys.

The tasks read the records of blocks and write them to files of the shared folder, by the hash of
their keys. They also write the keys whose records are all left to the replay. Those are keys whose
own changes do not determine their rows: a record of the key omits unchanged values, cannot be read
or has an unusual form; a row with unchanged values moved from the key to another; the key can be
written in another form; or it is an event that was deleted for good. Truncates and records without
a key are left to the replay, too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cdc.values import UNCHANGED_MARKS
from projections.archive.fold import old_keys
from projections.archive.progress import rest
from projections.archive.rebuilding.block_tasks import BlockTask, Buckets
from projections.archive.rebuilding.plain_rows import READ
from projections.archive.survey import by_topic, classified, flags, versions_of
from projections.changes.record import canonical
from projections.planning.key_forms import key_in_form, key_pattern, rewritten
from projections.planning.view_plan import facts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.archive.fold import Flags, Integers
    from projections.common.throttle import Throttle
    from projections.planning.view_plan import Facts, ViewPlan

DIVIDED: Final = pa.schema(
    [
        ("file", pa.string()),
        ("filtered", pa.int64()),
        ("truncated", pa.int64()),
        ("left", pa.list_(pa.int64())),
    ]
)

DIVIDED_ROWS: Final = 200_000
"""Records that a first task holds at a time."""


ROW: Final = "row"
BEGINS: Final = pa.array(["c", "d"])
"""Operations that show when a row was inserted, or that it did not exist."""

LEFT_KEY: Final = -1
"""Number of an entry that is no record, and names a key that is left."""

TOPIC: Final = "topic"
"""Which of the topics a record is from, by its number among them."""

PART: Final = pa.schema(
    [
        (ROW, pa.int64()),
        (TOPIC, pa.int32()),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DivideRecords(BlockTask):
    """Divides the records of blocks by the hash of their keys.

    Attributes:
        plan: The view.
        topics: Its topics.
    """

    plan: ViewPlan
    topics: tuple[str, ...]
    result_schema: ClassVar = DIVIDED
    reads: ClassVar[tuple[str, ...]] = ("headers",)

    def group(self, first: int, end: int, throttle: Throttle) -> dict[str, Any]:
        """Divides the records of some blocks."""
        undivided, filtered, truncated, waiting = list[int](), 0, 0, list[pa.Table]()
        facts = [facts_of([self.plan], topic) for topic in self.topics]
        with self.files.writing(PART) as (name, file):
            into = Buckets(file, self.buckets)
            for topic, own, rows in self._records(first, end):
                made, passed = self.divided(topic, facts[topic], own, rows, undivided)
                waiting.append(made)
                filtered += passed
                truncated = max(truncated, self._truncated(own))
                if sum(map(len, waiting)) >= DIVIDED_ROWS:
                    into.write(pa.concat_tables(waiting))
                    waiting.clear()
                rest(throttle)
            if waiting:
                into.write(pa.concat_tables(waiting))
        return {"file": name, "filtered": filtered, "truncated": truncated, "left": undivided}

    def _records(self, begin: int, end: int) -> Iterator[tuple[int, pa.RecordBatch, Integers]]:
        """Yields the records of blocks that count, with their topic and numbers in the archive."""
        numbers = {topic: number for number, topic in enumerate(self.topics)}
        for block in self.scan.blocks[begin:end]:
            extra = [] if self.scan.only_tombstones(block) else ["source"]
            columns = dict.fromkeys(("topic", *READ, *self.reads, *self.taken.columns, *extra))
            for first, batch in self.scan.read([*columns], [block]):
                for topic, chosen in by_topic(batch, self.topics):
                    rows = np.arange(first, first + batch.num_rows)
                    own = batch if chosen is None else batch.filter(pa.array(chosen))
                    rows = rows if chosen is None else rows[chosen]
                    there = self.taken.there(topic, own)
                    yield numbers[topic], own.filter(pa.array(there)), rows[there]

    def divided(
        self,
        topic: int,
        facts: Facts | None,
        batch: pa.RecordBatch,
        rows: Integers,
        undivided: list[int],
    ) -> tuple[pa.Table, int]:
        """Divides records.

        Args:
            topic: Number of their topic.
            facts: For a table of events, which of its records count.
            batch: The records.
            rows: Their numbers.
            undivided: Receives the numbers of single records that are left to the replay.

        Returns:
            Records with their keys and the keys that are left, and the number of unneeded records.
        """
        keyed, truncates, tombstones, named = classified(batch)
        loose = ~tombstones & (truncates | ~named)
        undivided += rows[loose].tolist()
        usual = flags(batch.column("raw_value").is_null())
        older = keyed & usual & (versions_of(batch) < self.plan.left_to_read)
        if self.plan.inserted_at:  # they may show when a row was inserted
            older &= ~flags(pc.is_in(batch.column("op"), value_set=BEGINS))
        alone = keyed & usual
        if facts is not None:
            older |= alone & _of_no_view(facts, batch)
            alone &= flags(pc.not_equal(batch.column("op"), "d"))  # `before` names the event
        passed = tombstones | (older & ~loose)
        wanted = ~passed & ~loose
        chosen = batch.filter(pa.array(wanted))
        keys = self._left_keys(chosen, alone[wanted])
        made = parted(topic, chosen, rows[wanted])
        return pa.concat_tables([made, self.left_behind(keys)]), int(passed.sum())

    def _truncated(self, batch: pa.RecordBatch) -> int:
        """Returns the version of the newest truncate that counts; 0 if there is none."""
        versions = versions_of(batch)[flags(pc.equal(batch.column("op"), "t"))]
        return int(versions[versions >= self.plan.left_to_read].max(initial=0))

    @staticmethod
    def left_behind(keys: set[str]) -> pa.Table:
        """Returns the entries of keys that are left to the replay."""
        blank = {field.name: pa.nulls(len(keys), field.type) for field in PART}
        blank[ROW] = pa.array([LEFT_KEY] * len(keys), pa.int64())
        blank["key"] = pa.array(sorted(keys), pa.string())
        return pa.table(blank, PART)

    def _left_keys(self, batch: pa.RecordBatch, readable: Flags) -> set[str]:
        """Returns the keys that are left because of these records."""
        if not batch.num_rows:
            return set()
        after, partial = plain(batch.column("after")), keeps(batch)
        texts = plain(batch.column("key"))
        schema = self.plan.schema
        strange = ~flags(pc.match_substring_regex(texts, key_pattern(schema)))
        for place in np.flatnonzero(strange).tolist():
            strange[place] = not key_in_form(schema, texts[place].as_py().encode())
        keys_left: set[str] = set()
        for place in np.flatnonzero(partial | ~readable | strange).tolist():
            text = texts[place].as_py()
            keys_left.add(text)
            keys_left |= self._other_forms(text, after[place].as_py())
        moved = batch.filter(pa.array(partial))
        if moved.num_rows:
            former = old_keys(moved.column("headers"), texts.filter(pa.array(partial)))
            for former_keys in former.values():
                keys_left |= former_keys
                for key in former_keys:
                    keys_left |= self._other_forms(key, None)
        return keys_left

    def _other_forms(self, key: str, row: str | None) -> set[str]:
        """Returns the forms of a key in records of its row, or in records that it blocks."""
        forms, schema = set(), self.plan.schema
        by_name = schema.by_name
        if (same := canonical(key.encode())) is not None:
            forms.add(same.decode())
        for text in filter(None, (key, row)):
            try:
                fields = orjson.loads(text)
                planned = {name: rewritten(by_name[name], fields[name]) for name in schema.key}
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue
            forms.add(orjson.dumps(planned).decode())
        return forms


def parted(topic: int, batch: pa.RecordBatch, rows: Integers) -> pa.Table:
    """Returns records of a topic, with their numbers, as a table of `PART`."""
    columns = [plain(batch.column(name)).cast(PART.field(name).type) for name in PART.names[2:]]
    of_topic = pa.repeat(pa.scalar(topic, pa.int32()), batch.num_rows)
    return pa.table([pa.array(rows), of_topic, *columns], schema=PART)


def keeps(batch: pa.RecordBatch) -> Flags:
    """Returns which records may omit unchanged values."""
    after, partial = plain(batch.column("after")), np.zeros(batch.num_rows, np.bool_)
    for mark in UNCHANGED_MARKS:
        partial |= flags(pc.match_substring(after, mark.decode()))
    return partial


def _of_no_view(facts: Facts, batch: pa.RecordBatch) -> Flags:
    """Returns which records of a table of events no view needs; see `TopicReducer`."""
    op = batch.column("op")
    unneeded = flags(pc.equal(op, "u"))
    if not facts.deletes:
        unneeded |= flags(pc.equal(op, "d"))
    undecided = np.flatnonzero(~unneeded & ~flags(pc.equal(op, "d")))
    texts = plain(batch.column("after")).take(pa.array(undecided)).fill_null("null")
    for place, row in zip(undecided.tolist(), _parsed(texts.to_pylist()), strict=True):
        kind = row.get("type") if isinstance(row, dict) else None
        unneeded[place] = kind is not None and kind not in facts.types
    return unneeded


def _parsed(texts: list[str]) -> list[Any]:
    """Parses texts; None for one that is not JSON."""
    with suppress(orjson.JSONDecodeError):
        rows: list[Any] = orjson.loads(b"[%b]" % ",".join(texts).encode())
        if len(rows) == len(texts):
            return rows
    return list(map(_parsed_alone, texts))


def _parsed_alone(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def plain(column: pa.Array) -> pa.Array:
    """Returns a column without dictionary encoding."""
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
