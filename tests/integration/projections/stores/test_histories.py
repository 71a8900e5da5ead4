"""Histories in their Delta tables: whatever comes twice, late or in pieces, the states are those
of the log in order."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import orjson
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from projections.changes.row_change import Applied, RowChange
from projections.errors import UnholdableValueError, WaitsBehindError
from projections.stores.delta.history.arrow import HistoryForm
from projections.stores.delta.history.sink import HistorySink
from projections.stores.delta.history.states import HistoryChange, history
from tests.fix_history import EPOCH, gone, price, prices, slowly, stored, unlike
from tests.fix_log import Source, numbered, sources
from tests.support.history_records import COLUMNS, deliver, expected, pieces, things

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("tracked", [("note",), COLUMNS], ids=["one column", "all columns"])
@slowly()
@given(source=sources(whole_rows=True), data=st.data())
def test_any_order_and_any_batches_end_in_the_states_of_the_log(
    tmp_path: Path, tracked: tuple[str, ...], source: Source, data: st.DataObject
) -> None:
    last = len(source.states) - 1
    began = data.draw(st.integers(0, last))
    reads = source.read(began, data.draw(st.integers(began, last)))
    records = [*source.topic, *reads]
    again = data.draw(st.lists(st.sampled_from(records), max_size=5))
    shuffled = numbered(data.draw(st.permutations(records + again)))
    plan, sink = things(tracked), HistorySink(tmp_path)
    sink.prepare(plan)

    for batch in pieces(data, shuffled):
        deliver(sink, plan, batch)

    in_order = sorted(records, key=lambda r: orjson.loads(r.value or b"")["source"]["lsn"])
    assert expected(in_order, tracked) == stored(tmp_path, plan)
    assert {} == unlike(tmp_path, plan)


@pytest.mark.parametrize(
    ("table", "damage", "found"),
    [
        ("", "UPDATE note", {2: ("note",)}),
        ("", "UPDATE valid_to", {2: ("valid_to",)}),
        ("", "DELETE", {2: ()}),
        (".changes", "UPDATE note", {2: ("note",)}),
        (".changes", "DELETE", {2: ("_last_at",)}),
    ],
)
def test_a_state_that_has_ended_and_was_altered_is_found_and_no_other(
    tmp_path: Path, table: str, damage: str, found: dict[int, tuple[str, ...]]
) -> None:
    plan, sink = prices(left_out="since"), HistorySink(tmp_path)
    sink.prepare(plan)
    for number in range(1, 5):
        rows = [price(10 * number + k, f"{number}", number, key=k, note="a") for k in (1, 2, 3)]
        sink.apply(plan, [structs.replace(r, row=without(r.row, "since")) for r in rows])
    assert {} == unlike(tmp_path, plan)

    damaged = DeltaTable(tmp_path / f"{plan.name}{table}")
    old = f"id = 2 AND _version = {EPOCH | 8 * 22}"
    if damage == "DELETE":
        damaged.delete(old)
    else:
        column = damage.removeprefix("UPDATE ")
        to = "'b'" if column == "note" else "valid_to + INTERVAL '1 second'"
        damaged.update({column: to}, predicate=old)
    wrong = unlike(tmp_path, plan)

    assert found.keys() == wrong.keys()
    assert set(found[2]) <= set(wrong[2])
    if damage != "DELETE":
        assert found == wrong


def without(row: Mapping[str, object] | None, name: str) -> dict[str, object]:
    return {column: value for column, value in (row or {}).items() if column != name}


@slowly()
@given(data=st.data())
def test_rows_with_times_of_their_own_end_in_the_same_states_in_any_order(
    tmp_path: Path, data: st.DataObject
) -> None:
    plan, sink, order = prices(by_sequence=True), HistorySink(tmp_path), st.integers(0, 9)
    log, seconds = [], 100
    for number in range(1, data.draw(st.integers(1, 8)) + 1):
        seconds += data.draw(st.sampled_from([0, 5, 10]))
        amount, since_s = data.draw(st.sampled_from("12")), seconds - data.draw(order)
        dead = data.draw(order) == 0
        log.append(
            gone(number, seconds)
            if dead
            else price(number, amount, seconds, since_s, note=str(number))
        )
    shuffled = data.draw(st.permutations(log + data.draw(st.lists(st.sampled_from(log)))))
    in_order = data.draw(st.booleans())
    sink.prepare(plan)

    for start in range(0, len(shuffled), 3):
        sink.apply(plan, (log if in_order else shuffled)[start : start + 3])

    form = HistoryForm(plan)
    every = [HistoryChange(c.version, c.committed_at_us, c.row, _since_us(c)) for c in log]
    states = sorted(history(every, form.rule), key=lambda state: state.identity)
    assert ({(1,): states} if states else {}) == stored(tmp_path, plan)
    newest = [] if log[-1].row is None else [log[-1].row["note"]]
    assert newest == [row["note"] for row in sink.documents(plan)]


def _since_us(change: RowChange) -> int | None:
    if change.row is None:
        return None
    since = change.row["since"]
    assert isinstance(since, datetime)
    return int(since.timestamp()) * 1_000_000


def test_a_change_of_an_untracked_column_is_put_into_its_state(tmp_path: Path) -> None:
    plan, sink = prices(left_out="since"), HistorySink(tmp_path)
    sink.prepare(plan)

    sink.apply(plan, [price(1, "1", 10, note="a"), price(2, "1", 20, note="b")])
    sink.apply(plan, [price(3, "1", 30, note="c")])
    sink.apply(plan, [price(4, "2", 40, note="d")])

    (states,) = stored(tmp_path, plan).values()
    seen = [(state.row["note"], state.valid_from_us, state.valid_to_us) for state in states]
    assert [("c", 10_000_000, 40_000_000), ("d", 40_000_000, None)] == seen
    assert "since" not in DeltaTable(str(tmp_path / plan.name)).schema().to_arrow().names


def test_a_writer_that_ends_between_the_two_tables_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10)])
    monkeypatch.setattr(sink, "_write_states", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        sink.apply(plan, [price(2, "2", 20), price(2, "5", 20, key=2)])
    other = HistorySink(tmp_path)

    applied = other.apply(plan, [price(2, "2", 20)])

    assert Applied(stale=1) == applied
    assert {(1,): 2, (2,): 1} == {key: len(s) for key, s in stored(tmp_path, plan).items()}


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_held_waits_with_what_comes_after_it(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    odd = structs.replace(
        price(2, "1", 20), row={**(price(2, "1", 20).row or {}), "price": Decimal("NaN")}
    )

    applied = sink.apply(plan, [price(1, "1", 10), odd, price(3, "3", 30), price(3, "1", 5, key=2)])

    assert (2, [EPOCH | 16, EPOCH | 24]) == (
        applied.upserted,
        sorted(refused.change.version for refused in applied.refused),
    )
    kinds = {type(refused.error) for refused in applied.refused}
    assert {UnholdableValueError, WaitsBehindError} == kinds
    assert Applied(upserted=2) == sink.apply(plan, [price(3, "3", 30), price(2, "2", 20)])
    assert [3, 1] == [len(states) for states in stored(tmp_path, plan).values()]


def test_a_row_without_a_time_of_its_own_waits(tmp_path: Path) -> None:
    plan, sink = prices(by_sequence=True), HistorySink(tmp_path)
    sink.prepare(plan)
    timeless = price(1, "1", 10)
    timeless = structs.replace(timeless, row={**(timeless.row or {}), "since": None})

    (refused,) = sink.apply(plan, [timeless]).refused

    assert refused.error.detail == "column since is NULL"


def test_current_states_lie_apart_and_a_batch_touches_no_others(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)
    sink.apply(plan, [price(1, "1", 10, key=key) for key in range(5)])
    sink.apply(plan, [price(2, "2", 20, key=key) for key in range(5)])
    table = DeltaTable(str(tmp_path / plan.name))
    ended = set(table.file_uris(file_pruning_predicate=[("is_current", "=", "false")]))

    sink.apply(plan, [price(3, "3", 30), gone(3, 30, key=2)])

    table.update_incremental()
    assert ended < set(table.file_uris(file_pruning_predicate=[("is_current", "=", "false")]))
    engine = QueryBuilder().register("prices", table)
    held = engine.execute("SELECT count(*) AS n FROM prices WHERE is_current").read_all()
    assert [4] == held["n"].to_pylist()


def test_compaction_loses_nothing(tmp_path: Path) -> None:
    plan, sink = prices(), HistorySink(tmp_path)
    sink.prepare(plan)

    for number in range(1, 56):
        sink.apply(plan, [price(number, str(number), number, key=number % 3)])

    assert 55 == sum(map(len, stored(tmp_path, plan).values()))
    assert 3 == len(list(sink.documents(plan)))
