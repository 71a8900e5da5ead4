"""Rows as they were at an earlier moment are those of the transactions that had committed by then.

Transactions interleave in the log: one that wrote first may commit last. An oracle applies them in
the order of their commits, one after the other, and knows the rows after each.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.lsn import Lsn
from cdc.snapshot.reads import Read
from cdc.table import TableSchema
from cdc.values import UNCHANGED_PLACEHOLDER
from projections.archive import replay
from projections.archive.as_of import KnownReads, former
from projections.archive.commits import Moment
from projections.archive.rebuilding.fold_tasks import FoldBlocks
from projections.changes.record import Record
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.views import Store
from projections.errors import MomentUnreadableError
from projections.planning.view_plan import HistoryPlan
from projections.stores.delta.table_diff import compare
from tests.fix_archive import archived, compacted
from tests.fix_log import PLAN, TOPIC
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORY = replace(PLAN, to=frozenset({Store.TABLE}), history=HistoryPlan(("note", "big")))
KEYLESS = replace(
    PLAN,
    schema=TableSchema(PLAN.schema.table, PLAN.schema.columns, ()),
    keys=(ROW_ID_COLUMN,),
    to=frozenset({Store.TABLE}),
)
BEGAN = datetime(2026, 11, 20, 10, tzinfo=UTC)
SECOND_US = 1_000_000


@dataclass
class Log:
    """A source's log: records by commit, and the rows after each commit.

    Attributes:
        commits: Position, time and rows after each transaction.
    """

    lsn: int = 0x1000
    at_us: int = round(BEGAN.timestamp() * 1_000_000)
    last_commit: int = 0
    rows: dict[int, Any] = field(default_factory=dict)
    commits: list[tuple[int, int, dict[int, Any]]] = field(default_factory=list)
    records: list[tuple[Record, datetime]] = field(default_factory=list)

    def together(self, transactions: list[list[tuple[str, int, str]]], order: Any) -> None:
        """Runs transactions on rows of their own, their records interleaved."""
        waiting = [list(steps) for steps in transactions]
        written: list[list[tuple[int, tuple[str, int, str]]]] = [[] for _ in transactions]
        while any(waiting):
            which = order.choice([n for n, steps in enumerate(waiting) if steps])
            written[which].append((self.lsn, waiting[which].pop(0)))
            self.lsn += 8 * order.randint(1, 3)
        numbers = list(range(len(transactions)))
        order.shuffle(numbers)
        for number in numbers:
            self.at_us += SECOND_US
            for place, (lsn, step) in enumerate(written[number], 1):
                self._step(lsn, place, *step)
            self.last_commit = self.lsn
            self.lsn += 8 * order.randint(1, 2)
            self.commits.append((self.last_commit, self.at_us, dict(self.rows)))

    def states(self, number: int) -> set[tuple[Any, ...]]:
        """What each key was after each of the first commits, from when on and until when."""
        found, open_ = set(), dict[int, tuple[Any, int]]()
        for _, at_us, rows in self.commits[: number + 1]:
            for key in {*open_, *rows}:
                was, since_us = open_.get(key, (None, 0))
                if was == rows.get(key):
                    continue
                if was is not None:
                    found.add((key, was["note"], was["big"], _at(since_us), _at(at_us)))
                    del open_[key]
                if key in rows:
                    open_[key] = rows[key], at_us
        for key, (row, since_us) in open_.items():
            found.add((key, row["note"], row["big"], _at(since_us), None))
        return found

    def read(self, *, sent_after_s: int = 0) -> None:
        """Reads all rows, at the position where the log is now."""
        for row in list(self.rows.values()):
            self._add("r", (self.lsn - 1, 0), row["id"], row, sent_after_s)

    def _step(self, lsn: int, number: int, kind: str, key: int, text: str) -> None:
        before = self.rows.get(key)
        if kind == "delete":
            if before is not None:
                del self.rows[key]
                self._add("d", (lsn, number), key, None)
            return
        if before is None:
            self.rows[key] = {"id": key, "note": text, "big": text}
            self._add("c", (lsn, number), key, self.rows[key])
            return
        self.rows[key] = before | {"note": text}
        self._add("u", (lsn, number), key, self.rows[key] | {"big": UNCHANGED_PLACEHOLDER})

    def _add(self, op: str, place: tuple[int, int], key: int, row: Any, after_s: int = 0) -> None:
        lsn, number = place
        before = str(self.last_commit) if self.last_commit and op != "r" else None
        source = {
            "schema": "public",
            "table": "things",
            "ts_us": self.at_us,
            "sequence": orjson.dumps([before, str(lsn)]).decode(),
            "lsn": lsn,
            "txId": 7,
        }
        said = {"before": {"id": key} if op == "d" else None, "after": row, "source": source}
        value = orjson.dumps(said | {"transaction": {"id": "1", "total_order": number}, "op": op})
        sent = datetime.fromtimestamp(self.at_us / 1e6, UTC) + timedelta(seconds=after_s)
        record = Record(orjson.dumps({"id": key}), value, "1", 0, len(self.records))
        self.records.append((record, sent))

    def archive(self, folder: Path) -> Path:
        for start in range(0, len(self.records), 7):
            part = self.records[start : start + 7]
            for record, sent in part:
                archived(folder, TOPIC, [record], sent)
        compacted(folder)
        return folder


def _at(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC)


@st.composite
def logs(draw: Callable[..., Any]) -> Log:
    log, order = Log(), draw(st.randoms(use_true_random=False))
    step = st.tuples(
        st.sampled_from(["put", "put", "delete"]), st.just(0), st.text("abc", max_size=2)
    )
    for _ in range(draw(st.integers(2, 5))):
        keys = draw(st.permutations([1, 2, 3, 4]))
        cut = draw(st.integers(1, 3))
        log.together(
            [
                [(kind, draw(st.sampled_from(own)), text) for kind, _, text in steps]
                for own in (keys[:cut], keys[cut:])
                for steps in [draw(st.lists(step, min_size=1, max_size=3))]
            ],
            order,
        )
    return log


def states_of(tables: Path) -> set[tuple[Any, ...]]:
    """States that lasted: what a transaction overwrites itself lasted no time."""
    found = DeltaTable(tables / "things").to_pyarrow_table().to_pylist()
    return {
        (row["id"], row["note"], row["big"], row["valid_from"], row["valid_to"])
        for row in found
        if row["valid_from"] != row["valid_to"]
    }


def a_read(lsn: int, at_us: int) -> Read:
    at = datetime.fromtimestamp(at_us / 1e6, UTC)
    given = {"read_lsn": Lsn(lsn), "asked_at": at, "begun_at": at, "ended_at": at}
    names = dict.fromkeys(each.name for each in fields(Read))
    said = {"source": "shop", "epoch": 1, "table": PLAN.schema.table, "state": "done"}
    said["topic"] = PLAN.topic
    return Read(**names | said | given)


def keyless(record: Record) -> Record:
    """The record as one of a table without a key."""
    return record._replace(key=None)


def rows_of(tables: Path) -> dict[int, Any]:
    found = DeltaTable(tables / "things").to_pyarrow_table().drop(["_version"]).to_pylist()
    return {row["id"]: row for row in found}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PART_RECORDS", 5)


@settings(max_examples=examples(15), deadline=None)
@given(log=logs(), data=st.data())
def test_rows_are_those_of_the_transactions_that_had_committed(
    log: Log, data: st.DataObject
) -> None:
    named = {lsn for lsn, *_ in log.commits}
    told = {
        orjson.loads(orjson.loads(r.value or b"")["source"]["sequence"])[0] for r, _ in log.records
    }
    # before the first commit that is named, the archive knows of none
    known = sorted(named & {int(each) for each in told if each})[int(None not in told) :]
    if not known:
        return
    commit = data.draw(st.sampled_from(known))
    at_us, rows = next((at, rows) for lsn, at, rows in log.commits if lsn == commit)
    with tempfile.TemporaryDirectory() as place:
        archive = log.archive(Path(place) / "shop")
        by_lsn = former(archive, [PLAN], Moment(lsn=Lsn(commit)), Path(place) / "one")
        assert rows == rows_of(by_lsn.tables)
        assert commit == by_lsn.reached.commit.value
        if at_us < log.at_us:
            by_time = former(archive, [PLAN], Moment(at_us=at_us), Path(place) / "two")
            assert rows == rows_of(by_time.tables)


@settings(max_examples=examples(15), deadline=None)
@given(log=logs(), data=st.data())
def test_a_history_has_the_states_that_were_known_then(log: Log, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(log.commits) - 2))
    commit, at_us, _ = log.commits[number]
    with tempfile.TemporaryDirectory() as place:
        archive = log.archive(Path(place) / "shop")
        try:
            made = former(archive, [HISTORY], Moment(lsn=Lsn(commit)), Path(place) / "one")
        except MomentUnreadableError:
            return  # no record names a commit so early
        # rounded down to one that a record names
        reached = next(
            n for n, each in enumerate(log.commits) if each[0] == made.reached.commit.value
        )
        assert reached <= number
        assert log.states(reached) == states_of(made.tables)
        assert at_us >= made.reached.at_us


def test_what_a_read_has_not_found_is_gone_in_a_history_once_the_read_was_at_its_end(
    tmp_path: Path,
) -> None:
    log = a_log(3)
    del log.rows[1]  # in a gap of the log, say
    log.at_us += 10 * SECOND_US
    read_lsn = log.lsn - 1
    log.read()
    log.lsn += 8
    for _ in range(2):  # a commit names the one before it
        log.at_us += 10 * SECOND_US
        log.together([[("put", 2, "later")]], FirstFirst())
    archive = log.archive(tmp_path / "shop")
    known = KnownReads([a_read(read_lsn, log.at_us)])
    before, after = log.commits[1][0], log.commits[-2][0]

    def current(commit: int, known: KnownReads, name: str) -> set[int]:
        made = former(archive, [HISTORY], Moment(lsn=Lsn(commit)), tmp_path / name, known)
        return {key for key, *_, ended in states_of(made.tables) if ended is None}

    assert {0, 2} == current(after, known, "after")
    assert {0, 1, 2} == current(after, KnownReads(), "unknown")
    with pytest.raises(MomentUnreadableError, match="does not have the rows"):
        current(before, known, "before")


def test_a_later_read_that_found_nothing_takes_no_row_of_before(tmp_path: Path) -> None:
    log = a_log(4)
    commit, _, rows = log.commits[2]
    log.rows.clear()  # in a gap of the log
    log.at_us += 10 * SECOND_US
    known = KnownReads([a_read(log.lsn - 1, log.at_us)])
    for _ in range(2):
        log.at_us += 10 * SECOND_US
        log.together([[("put", 7, "later")]], FirstFirst())
    archive = log.archive(tmp_path / "shop")

    # no read was at its end
    with pytest.raises(MomentUnreadableError, match="does not have the rows"):
        former(archive, [PLAN], Moment(lsn=Lsn(commit)), tmp_path / "known", known)
    early = KnownReads([a_read(0x1000 - 1, 0), *known.reads])
    before = former(archive, [PLAN], Moment(lsn=Lsn(commit)), tmp_path / "before", early)
    assert rows == rows_of(before.tables)
    after = former(archive, [PLAN], Moment(lsn=Lsn(log.commits[-2][0])), tmp_path / "after", early)
    assert {7} == rows_of(after.tables).keys()


def test_rows_without_a_key_are_those_of_the_last_read_that_was_at_its_end_and_of_inserts_since(
    tmp_path: Path,
) -> None:
    log, reads = Log(), []
    for number in range(8):
        log.at_us += 10 * SECOND_US
        log.together([[("put", 10 * number, f"n{number}")]], FirstFirst())
        if number in {1, 4}:
            # the second is at its end only two commits later: its first row is there before
            reads.append(a_read(log.lsn - 1, log.at_us))
            for place, row in enumerate(log.rows.values()):
                slow = place and number == 4
                log._add("r", (log.lsn - 1, place), 0, row, 25 if slow else 0)
            log.lsn += 8
    for index, (record, sent) in enumerate(log.records):
        log.records[index] = keyless(record), sent
    archive = log.archive(tmp_path / "shop")

    for number in (2, 3, 4, 5, 6):
        commit, _, rows = log.commits[number]
        known = KnownReads(reads)
        made = former(archive, [KEYLESS], Moment(lsn=Lsn(commit)), tmp_path / f"at{number}", known)
        found = DeltaTable(made.tables / "things").to_pyarrow_table().to_pylist()
        assert sorted(rows) == sorted(row["id"] for row in found), number


def a_log(rows: int) -> Log:
    log = Log()
    for number in range(rows):
        log.together([[("put", number % 3, f"n{number}")]], FirstFirst())
    return log


class FirstFirst:
    """An order in which what is first comes first."""

    def choice(self, among: list[int]) -> int:
        return among[0]

    def randint(self, low: int, high: int) -> int:  # noqa: ARG002
        return low

    def shuffle(self, numbers: list[int]) -> None:
        """Leaves them."""


def test_one_that_wrote_first_and_committed_last_counts_from_its_commit(tmp_path: Path) -> None:
    log = Log()
    log.together([[("put", 1, "a")]], FirstFirst())
    early, late = log.lsn, log.lsn + 8
    log.lsn += 16
    # the second transaction has written before the first commits, and commits after it
    for number, (lsn, key) in enumerate(((late, 2), (early, 3))):
        log.at_us += SECOND_US
        log._step(lsn, 1, "put", key, f"t{number}")
        log.last_commit = log.lsn
        log.lsn += 8
        log.commits.append((log.last_commit, log.at_us, dict(log.rows)))
    log.together([[("put", 4, "end")]], FirstFirst())
    archive = log.archive(tmp_path / "shop")

    after_first = former(archive, [PLAN], Moment(lsn=Lsn(log.commits[1][0])), tmp_path / "one")
    after_second = former(archive, [PLAN], Moment(lsn=Lsn(log.commits[2][0])), tmp_path / "two")

    assert [1, 2] == sorted(rows_of(after_first.tables)), "3 has an older position"
    assert [1, 2, 3] == sorted(rows_of(after_second.tables))


def test_what_no_task_can_do_is_done_record_by_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = a_log(9)
    archive, moment = log.archive(tmp_path / "shop"), Moment(lsn=Lsn(log.commits[6][0]))
    expected = rows_of(former(archive, [PLAN], moment, tmp_path / "tasks").tables)

    def broken(*_: object) -> None:
        raise ValueError("a value")

    monkeypatch.setattr(FoldBlocks, "group", broken)
    found = former(archive, [PLAN], moment, tmp_path / "records")

    assert expected
    assert expected == rows_of(found.tables)


def test_two_moments_are_compared_as_versions_of_one_table(tmp_path: Path) -> None:
    log = a_log(9)
    archive, tables = log.archive(tmp_path / "shop"), tmp_path / "tables"

    first = former(archive, [PLAN], Moment(lsn=Lsn(log.commits[1][0])), tables)
    second = former(archive, [PLAN], Moment(lsn=Lsn(log.commits[6][0])), tables)
    found = compare(tables / "things", first.versions["things"], second.versions["things"], ("id",))

    assert (1, 0, 2) == (found.appeared, found.gone, found.changed)


def test_a_moment_before_the_end_of_the_first_read_is_refused_and_the_first_is_named(
    tmp_path: Path,
) -> None:
    log = Log(rows={7: {"id": 7, "note": "old", "big": "old"}}, lsn=0x2000)
    log.read(sent_after_s=3)
    for number in range(9):
        log.together([[("put", number % 3, f"n{number}")]], FirstFirst())
    archive = log.archive(tmp_path / "shop")

    with pytest.raises(MomentUnreadableError, match="does not have the rows of that") as refused:
        former(archive, [PLAN], Moment(lsn=Lsn(log.commits[1][0])), tmp_path / "one")

    lsn, at_us, rows = log.commits[3]
    at = datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")
    assert f"the first is {Lsn(lsn)}, {at}" == refused.value.detail
    found = former(archive, [PLAN], Moment(lsn=Lsn(lsn)), tmp_path / "two")
    assert rows == rows_of(found.tables)


def test_a_moment_that_the_archive_has_not_come_to_is_refused(tmp_path: Path) -> None:
    log = a_log(3)
    archive = log.archive(tmp_path / "shop")

    for moment in (Moment(lsn=Lsn(log.lsn + 800)), Moment(at_us=log.at_us + SECOND_US)):
        with pytest.raises(MomentUnreadableError, match="does not reach that moment yet"):
            former(archive, [PLAN], moment, tmp_path / "one")
    newest = former(archive, [PLAN], Moment(), tmp_path / "two")
    assert log.commits[1][2] == rows_of(newest.tables), "the last names no commit of its own"
