"""What truncates end, and what reads have not found: at the moment of each, whatever comes when."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from projections.changes.row_change import Applied, ReadSpan, RowChange
from projections.stores.delta.history.arrow import HistoryForm, microseconds
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.history.states import HistoryChange, history
from tests.fix_history import EPOCH, gone, price, prices, slowly, stored, unlike

if TYPE_CHECKING:
    from pathlib import Path

    from projections.planning.view_plan import ViewPlan
    from projections.stores.delta.history.states import HistoryState

pytestmark = pytest.mark.integration

KEYS = (1, 2, 3)
READ = 7
"""Of a read's position in the log, what no record's position has."""


def row_of(key: int, amount: str, note: str, since_s: int = 0) -> dict[str, object]:
    made = price(0, amount, 0, since_s, note=note, key=key).row
    assert made is not None
    return dict(made)


@dataclass
class Table:
    """A table of prices as it really was, its log with gaps, and what was read of it.

    Attributes:
        log: What the history is given.
        spans: Its whole reads.
        rows: What it has now.
        gone: Reads, by their version, and keys that had no row by then.
    """

    log: list[RowChange] = field(default_factory=list)
    spans: list[ReadSpan] = field(default_factory=list)
    rows: dict[int, dict[str, object]] = field(default_factory=dict)
    gone: set[tuple[int, int]] = field(default_factory=set)
    epoch: int = 1
    place: int = 0
    at_s: int = 100

    def version(self) -> int:
        return self.epoch << 56 | 8 * self.place

    def step(self, key: int, amount: str, back_s: int, *, lost: bool = False) -> None:
        """Writes a row whose own time is some seconds back, or deletes it."""
        self.place, self.at_s = self.place + 1, self.at_s + 10
        there, at_us = key in self.rows, self.at_s * 1_000_000
        if amount == "":
            if not there:
                return
            del self.rows[key]
            change = RowChange((key,), self.version(), None, at_us)
        else:
            self.rows[key] = row = row_of(key, amount, f"{self.place}", self.at_s - back_s)
            change = RowChange((key,), self.version(), row, at_us, inserted=not there)
        if not lost:
            self.log.append(change)

    def truncate(self, back_s: int) -> None:
        """Removes all rows; the clock may have been set back by some seconds."""
        self.place, self.at_s = self.place + 1, self.at_s + 10
        self.rows.clear()
        at_us = (self.at_s - back_s) * 1_000_000
        self.log.append(RowChange((), self.version(), None, at_us))

    def read(self, meanwhile: list[Any], superseded: set[int]) -> None:
        """Reads the table: rows that change meanwhile may be left out, or come as they are."""
        version, begun_s = self.version() | READ, self.at_s + 5
        self.at_s += 10
        before = set(self.rows)
        first = len(self.log)
        for step in meanwhile:
            self.truncate(step) if isinstance(step, int) else self.step(*step)
        changed = {change.key[0] for change in self.log[first:] if change.key}
        truncated = [number for number, c in enumerate(self.log) if number >= first and not c.key]
        after = {
            key
            for key in KEYS
            if truncated and not any(c.key == (key,) for c in self.log[first : truncated[0]])
        }
        # of what is gone by a truncate right after, nobody can tell whether it was there before
        self.gone |= {(version, key) for key in KEYS if key not in before | after}
        self.at_s += 10
        for key, row in self.rows.items():
            if key not in changed & superseded:
                at_us = self.at_s * 1_000_000
                self.log.append(RowChange((key,), version, row, 0, read_at_us=at_us))
        self.spans.append(ReadSpan(version, begun_s * 1_000_000, self.at_s * 1_000_000))

    def states(self, plan: ViewPlan) -> dict[tuple[object, ...], list[HistoryState]]:
        """What the history of each key is, as far as the log and the reads can tell."""
        form, found = HistoryForm(plan), {}
        for key in KEYS:
            known = [
                HistoryChange(c.version, c.committed_at_us or c.read_at_us, c.row, own_us(c, form))
                for c in self.log
                if c.key == (key,)
            ]
            ends = [(c.version, c.committed_at_us, True) for c in self.log if not c.key]
            ends += [
                (s.version - 1, s.at_us, False) for s in self.spans if (s.version, key) in self.gone
            ]
            known += [
                HistoryChange(version, at_us, None)
                for version, at_us, logged in ends
                if (before := [change for change in known if change.version < version])
                # of a key that is gone already, a read says nothing new
                and (logged or max(before, key=attrgetter("version")).row is not None)
            ]
            if states := history(known, form.rule):
                found[key,] = sorted(states, key=lambda state: state.identity)
        return found


def own_us(change: RowChange, form: HistoryForm) -> int | None:
    if change.row is None or form.sequence_by is None:
        return None
    since = change.row[form.sequence_by]
    assert isinstance(since, datetime)
    return microseconds(since)


STEPS = st.tuples(
    st.sampled_from(KEYS), st.sampled_from(["1", "2", ""]), st.sampled_from([0, 15, 90])
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A table that is read first, then written, read again, and loses some of its log."""
    found = Table()
    truncates = st.sampled_from([0, 0, 25])
    meanwhile = st.lists(st.one_of(truncates, STEPS, STEPS, STEPS), max_size=4)
    for step in draw(st.lists(STEPS, max_size=3)):
        found.step(*step, lost=True)
    found.read(draw(meanwhile), draw(st.sets(st.sampled_from(KEYS))))
    for kind in draw(st.lists(st.sampled_from(["write", "write", "read", "lose"]), max_size=5)):
        for step in draw(meanwhile):
            if isinstance(step, int):
                found.truncate(step)
            else:
                found.step(*step, lost=kind == "lose")
        if kind == "lose":
            found.epoch += 1
        if kind != "write":
            found.read(draw(meanwhile), draw(st.sets(st.sampled_from(KEYS))))
    return found


@pytest.mark.parametrize("by_sequence", [False, True], ids=["commit", "own"])
@slowly()
@given(table=tables(), data=st.data())
def test_states_end_by_what_was_true_whatever_comes_when(
    tmp_path: Path, by_sequence: bool, table: Table, data: st.DataObject
) -> None:
    """Also where sweeps come before all of their reads, as when records wait in quarantine."""
    plan, sink = prices(by_sequence=by_sequence), HistorySink(tmp_path)
    sink.prepare(plan)
    order = data.draw(st.permutations(range(len(table.log))))
    shuffled = table.log if data.draw(st.booleans()) else [table.log[place] for place in order]
    ends = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=4)))

    for begin, end in zip([0, *ends], [*ends, len(shuffled)], strict=True):
        sink.apply(plan, shuffled[begin:end])
        if data.draw(st.booleans()):
            newest = data.draw(st.sampled_from(table.spans))
            sink.sweep(plan, newest.version, table.spans)
    sink.sweep(plan, table.spans[-1].version, table.spans)

    assert table.states(plan) == stored(tmp_path, plan)
    assert {} == unlike(tmp_path, plan)
    now = {row["id"]: row["note"] for row in sink.documents(plan)}
    assert {key: row["note"] for key, row in table.rows.items()} == now


def _read(key: int, position: int, at_s: int, amount: str = "5") -> RowChange:
    row = row_of(key, amount, "read")
    return RowChange((key,), EPOCH | position, row, 0, read_at_us=at_s * 1_000_000)


def _span(position: int, at_s: int) -> ReadSpan:
    return ReadSpan(EPOCH | position, at_s * 1_000_000, at_s * 1_000_000)


def test_a_sweep_after_a_writer_has_ended_between_the_two_tables_makes_that_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10), price(1, "7", 10, key=3), price(2, "8", 20, key=3)])
    monkeypatch.setattr(sink, "_write_states", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.apply(plan, [price(3, "2", 30), price(3, "5", 30, key=2)])

    HistorySink(tmp_path).sweep(plan, EPOCH | 23, [_span(23, 25)])

    assert {(1,): 2, (2,): 1, (3,): 2} == {key: len(s) for key, s in stored(tmp_path, plan).items()}
    assert {} == unlike(tmp_path, plan)


@pytest.mark.parametrize(
    "later",
    [RowChange((), EPOCH | 24, None, 30_000_000), price(3, "3", 30)],
    ids=["truncate", "row"],
)
@pytest.mark.parametrize("late", [True, False])
def test_a_truncate_ends_a_state_whenever_it_comes(
    tmp_path: Path, later: RowChange, late: bool
) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    truncate = RowChange((), EPOCH | 16, None, 20_000_000)
    sink.apply(plan, [price(1, "1", 10)])

    for change in (later, truncate) if late else (truncate, later):
        sink.apply(plan, [change])

    assert 20_000_000 == stored(tmp_path, plan)[1,][0].valid_to_us


@pytest.mark.parametrize("at_s", [(20, 30, 15), (30, 15, 20), (15, 20, 30)])
def test_the_earliest_time_of_truncates_ends_a_state_whichever_came_last(
    tmp_path: Path, at_s: tuple[int, ...]
) -> None:
    """The clock may have been set back between them."""
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10)])

    for place, seconds in enumerate(at_s, start=2):
        sink.apply(plan, [RowChange((), EPOCH | 8 * place, None, seconds * 1_000_000)])

    assert [15_000_000] == [state.valid_to_us for state in stored(tmp_path, plan)[1,]]
    assert {} == unlike(tmp_path, plan)


def test_a_sweep_ends_states_and_removes_none(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    span = _span(47, 45)
    assert sink.sweep(plan, span.version, [span]) == 0
    sink.apply(plan, [price(1, "1", 10), _read(2, 47, 50)])

    swept = [sink.sweep(plan, span.version, [span]) for _ in range(2)]

    assert [1, 0] == swept
    (states, kept) = stored(tmp_path, plan).values()
    assert [45_000_000] == [state.valid_to_us for state in states]
    assert [(50_000_000, None)] == [(state.valid_from_us, state.valid_to_us) for state in kept]
    late = price(3, "3", 30)
    assert Applied(upserted=1) == sink.apply(plan, [late])
    states = stored(tmp_path, plan)[1,]
    assert [30_000_000, 45_000_000] == [state.valid_to_us for state in states]


def test_of_two_reads_at_one_position_the_earlier_one_ends_states(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10)])

    sink.sweep(plan, EPOCH | 47, [_span(47, 45), _span(47, 65)])

    assert [45_000_000] == [state.valid_to_us for state in stored(tmp_path, plan)[1,]]


@pytest.mark.parametrize("after", ["update", "delete", "insert"])
def test_a_read_ends_nothing_that_the_log_says_was_there_after_it(
    tmp_path: Path, after: str
) -> None:
    """The row was changed before the read had come to it, so the read has no row of its key."""
    plan, sink, span = prices(), HistorySink(tmp_path), _span(47, 45)
    sink.prepare(plan)
    change = gone(7, 60) if after == "delete" else price(7, "1", 60)
    change = structs.replace(change, inserted=after == "insert")
    sink.apply(plan, [price(1, "1", 10), change])

    sink.sweep(plan, span.version, [span])

    ended = {"update": [None], "delete": [60_000_000], "insert": [45_000_000, None]}[after]
    assert ended == [state.valid_to_us for state in stored(tmp_path, plan)[1,]]
    assert {} == unlike(tmp_path, plan)


def test_what_a_sweep_was_cut_off_before_is_ended_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sink, spans = prices(), HistorySink(tmp_path), [_span(23, 25), _span(47, 45)]
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10), price(2, "2", 20, key=2)])
    monkeypatch.setattr(sink, "_write_states", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.sweep(plan, spans[0].version, spans)

    swept = HistorySink(tmp_path).sweep(plan, spans[1].version, spans)

    assert swept == 2
    ended = [state.valid_to_us for states in stored(tmp_path, plan).values() for state in states]
    assert [25_000_000, 25_000_000] == ended


def test_a_history_of_before_inserts_were_told_apart_goes_on(tmp_path: Path) -> None:
    """What the log said of a change of then is unknown; that a row was deleted is not."""
    plan, span = prices(), _span(47, 45)
    HistorySink(tmp_path).prepare(plan)
    rows = [price(1, "1", 10), price(2, "2", 20, key=2), gone(7, 60, key=2)]
    HistorySink(tmp_path).apply(plan, rows)
    path = str(tmp_path / f"{plan.name}.changes")
    older = DeltaTable(path).to_pyarrow_table().drop_columns(["_inserted"])
    write_deltalake(path, older, mode="overwrite", schema_mode="overwrite")
    assert {} == unlike(tmp_path, plan)
    sink = HistorySink(tmp_path)

    sink.prepare(plan)
    sink.sweep(plan, span.version, [span])
    sink.apply(plan, [structs.replace(price(8, "3", 70), inserted=True)])

    one, two = stored(tmp_path, plan).values()
    assert [45_000_000, None] == [state.valid_to_us for state in one]
    assert [60_000_000] == [state.valid_to_us for state in two]
    assert {} == unlike(tmp_path, plan)


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
