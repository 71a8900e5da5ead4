"""A source, its log and its topic as values: what the connector and the reader would write.

Transactions of a small table interleave in the log as Postgres' locks let them, go to the topic by
commit, and leave out large values that they do not change. Reads send the rows of some later moment
under the position at which they began.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import strategies as st

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import UNCHANGED_PLACEHOLDER
from projections.changes.record import Record
from projections.definition.views import Store
from projections.planning.view_plan import ViewPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TABLE = TableSchema(
    TableName("public", "things"),
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("note", ColumnKind.TEXT, "text"),
        Column("big", ColumnKind.TEXT, "text"),
    ),
    ("id",),
)
TOPIC = "shop.public.things"
PLAN = ViewPlan("things", "shop", TOPIC, TABLE, ("id",), frozenset(Store))
LEAN = replace(
    PLAN,
    schema=TableSchema(TABLE.table, TABLE.columns[:2], TABLE.key),
    left_out=TABLE.columns[2:],
)
"""A view of the same table that leaves out its large column."""

KEYS = range(1, 5)

Row = dict[str, Any]
Rows = dict[int, Row]


@dataclass(frozen=True, slots=True)
class Written:
    """A row-level change as the log has it: one that moves a row is a delete and a create."""

    op: str
    key: int
    row: Row | None = None
    old_key: int | None = None


@dataclass(slots=True)
class Source:
    """The table and its log.

    Attributes:
        lsn: Where the log's next record begins.
        topic: What the connector has written, in order.
        epoch: Incarnation of the source.
        states: The rows after each commit, with the log's end at that moment.
    """

    whole_rows: bool = False
    lsn: int = 0x1000
    rows: Rows = field(default_factory=dict)
    topic: list[Record] = field(default_factory=list)
    epoch: int = 1
    states: list[tuple[int, Rows]] = field(default_factory=lambda: [(0x1000, {})])
    _number: int = 0

    def together(self, transactions: Sequence[Sequence[tuple[Any, ...]]], order: Any) -> None:
        """Runs transactions that hold no lock in common, their records interleaved in the log."""
        rows = dict(self.rows)
        written: list[list[tuple[int, Written]]] = [[] for _ in transactions]
        waiting = [list(steps) for steps in transactions]
        while any(waiting):
            which = order.choice([n for n, steps in enumerate(waiting) if steps])
            changes = self._step(rows, *waiting[which].pop(0))
            written[which] += [(self.lsn, change) for change in changes]
            self.lsn += 8 * order.randint(1, 3) if changes else 0
        commits = list(range(len(transactions)))
        order.shuffle(commits)
        for which in commits:
            for number, (lsn, change) in enumerate(written[which], 1):
                self.topic.append(self._streamed(lsn, number, change))
        self.rows = rows
        self.lsn += 8
        self.states.append((self.lsn, dict(rows)))

    def truncate(self) -> None:
        """Empties the table."""
        value = envelope("t", self.lsn, None)
        self.topic.append(Record(None, value, str(self.epoch), 0, 0))
        self.lsn += 8
        self.rows = {}
        self.states.append((self.lsn, {}))

    def lose(self, transactions: Sequence[Sequence[tuple[Any, ...]]], order: Any) -> None:
        """Runs transactions that nobody captures; the source is captured anew after them."""
        known = len(self.topic)
        self.together(transactions, order)
        del self.topic[known:]
        self.epoch += 1

    def read(self, began: int, seen: int) -> list[Record]:
        """What a read sends that began at one of `states` and saw the rows of a later one."""
        position = self.states[began][0] - 1
        return [self._read(position, row) for row in self.states[max(began, seen)][1].values()]

    def read_now(self, key: int) -> Record:
        """What a read of one key sends now: its row, or that there is none."""
        self.lsn += 8
        row = self.rows.get(key)
        return self._read(self.lsn - 1, row) if row else self._absent(self.lsn - 1, key)

    def _step(self, rows: Rows, kind: str, *what: Any) -> list[Written]:
        self._number += 1
        if kind == "copy":
            return [c for key in what for c in self._put(rows, key, str(self._number))]
        if kind == "insert":
            return self._put(rows, what[0], str(self._number))
        if kind == "delete":
            return [Written("d", what[0])] if rows.pop(what[0], None) else []
        if kind == "note":
            return self._update(rows, what[0], note=f"n{self._number}")
        if kind == "big":
            return self._update(rows, what[0], big=f"b{self._number}")
        return self._move(rows, *what)

    def _put(self, rows: Rows, key: int, text: str) -> list[Written]:
        if key in rows:
            return self._update(rows, key, note=f"n{text}", big=f"b{text}-{key}")
        rows[key] = {"id": key, "note": f"n{text}", "big": f"b{text}-{key}"}
        return [Written("c", key, rows[key])]

    def _update(self, rows: Rows, key: int, **values: str) -> list[Written]:
        if key not in rows:
            return []
        rows[key] = rows[key] | values
        return [Written("u", key, rows[key] if "big" in values else self._logged(rows[key]))]

    def _move(self, rows: Rows, old: int, new: int) -> list[Written]:
        if old not in rows or new in rows:
            return []
        rows[new] = rows.pop(old) | {"id": new}
        return [Written("d", old), Written("c", new, self._logged(rows[new]), old)]

    def _logged(self, row: Row) -> Row:
        return row if self.whole_rows else row | {"big": UNCHANGED_PLACEHOLDER}

    def _streamed(self, lsn: int, number: int, change: Written) -> Record:
        value = envelope(change.op, lsn, change.row, key=change.key, order=number)
        return self._record(change.key, value, change.old_key)

    def _read(self, position: int, row: Row) -> Record:
        return self._record(row["id"], envelope("r", position, row), None)

    def _absent(self, position: int, key: int) -> Record:
        return self._record(key, envelope("d", position, None, key=key), None)

    def _record(self, key: int, value: bytes, old_key: int | None) -> Record:
        old = None if old_key is None else orjson.dumps({"id": old_key})
        return Record(orjson.dumps({"id": key}), value, str(self.epoch), 0, 0, old)


def envelope(
    op: str, lsn: int, row: Row | None, *, key: int | None = None, order: int = 0
) -> bytes:
    """The value of a record."""
    return orjson.dumps(
        {
            "before": {"id": key, "note": None, "big": None} if op == "d" else None,
            "after": row,
            "source": {
                "schema": "public",
                "table": "things",
                "ts_ms": 1,
                "ts_us": 1000 + lsn,
                "sequence": orjson.dumps([None, str(lsn)]).decode(),
                "lsn": lsn,
            },
            "transaction": {"id": "1", "total_order": order},
            "op": op,
        }
    )


def rekeyed(records: Sequence[Record], word: Callable[[int, int], Any]) -> list[Record]:
    """The same records of a table whose key is of another type.

    Args:
        records: Records.
        word: Of a key and a record's place, how the value is written there.
    """

    def written(text: bytes | None, place: int) -> bytes | None:
        try:
            fields = None if text is None else orjson.loads(text)
        except orjson.JSONDecodeError:
            return text
        if fields is None:
            return text
        for row in (fields, fields.get("before"), fields.get("after")):
            if row and "id" in row:
                row["id"] = word(row["id"], place)
        return orjson.dumps(fields)

    return [
        record._replace(
            key=written(record.key, place),
            value=written(record.value, place),
            old_key=written(record.old_key, place),
        )
        for place, record in enumerate(records)
    ]


def numbered(records: Sequence[Record]) -> list[Record]:
    """The same records as a partition has them, each at its offset."""
    return [record._replace(offset=offset) for offset, record in enumerate(records)]


def steps_on(keys: Sequence[int]) -> st.SearchStrategy[tuple[Any, ...]]:
    """One statement on rows of these keys."""
    key = st.sampled_from(list(keys))
    kinds = [
        st.tuples(st.sampled_from(["insert", "delete", "note", "note", "big"]), key),
        st.tuples(st.just("move"), key, key),
    ]
    if len(keys) > 1:
        kinds.append(st.just(("copy", *keys)))
    return st.one_of(kinds)


def groups(draw: Callable[..., Any]) -> list[list[tuple[Any, ...]]]:
    """Transactions side by side that touch no row in common, or one that swaps two keys."""
    if draw(st.booleans()):
        one, other = draw(st.permutations([1, 2, 3, 4]))[:2]
        spare = max(KEYS) + 1
        return [[("move", one, spare), ("move", other, one), ("move", spare, other)]]
    keys = draw(st.permutations(list(KEYS)))
    cut = draw(st.integers(1, len(keys)))
    parts = [part for part in (keys[:cut], keys[cut:]) if part]
    return [draw(st.lists(steps_on(part), min_size=1, max_size=4)) for part in parts]


@st.composite
def sources(draw: Callable[..., Any], *, whole_rows: bool = False) -> Source:
    """A source after some transactions, now and then emptied."""
    source = Source(whole_rows)
    order = draw(st.randoms(use_true_random=False))
    source.together([[("copy", *draw(st.permutations(list(KEYS))))]], order)
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.integers(0, 7)) == 0:
            source.truncate()
        source.together(groups(draw), order)
    return source


@st.composite
def topics(draw: Any, *, whole_rows: bool = False) -> list[Record]:
    """Records of a source, read, lost and repeated in part; some that nobody can read."""
    source = draw(sources(whole_rows=whole_rows))
    order = draw(st.randoms(use_true_random=False))
    if draw(st.booleans()):
        source.lose(groups(draw), order)
        source.together(groups(draw), order)
    records = list(source.topic)
    for _ in range(draw(st.integers(0, 2))):
        began = draw(st.integers(0, len(source.states) - 1))
        for row in source.read(began, draw(st.integers(began, len(source.states) - 1))):
            records.insert(draw(st.integers(0, len(records))), row)
    if records:
        for again in draw(st.lists(st.sampled_from(records), max_size=4)):
            records.insert(draw(st.integers(0, len(records))), again)
        for place in draw(st.lists(st.integers(0, len(records) - 1), max_size=3)):
            tombstone = records[place]._replace(value=None, old_key=None)
            records.insert(place + 1, tombstone)
        spoilt = st.sampled_from([b"{", b'{"before":null,"after":null,"source":{},"op":"c"}'])
        for place in draw(st.lists(st.integers(0, len(records) - 1), max_size=1)):
            records[place] = records[place]._replace(value=draw(spoilt))
    return numbered(records)


def orders(count: int) -> list[Record]:
    """Changes of seven rows, one after the other."""
    rows = [{"id": n % 7, "note": f"n{n}", "big": "b"} for n in range(count)]
    return numbered(
        [
            Record(
                orjson.dumps({"id": row["id"]}),
                envelope("c" if n < 7 else "u", 0x1000 + 8 * n, row, order=1),
                "1",
                0,
                n,
            )
            for n, row in enumerate(rows)
        ]
    )
