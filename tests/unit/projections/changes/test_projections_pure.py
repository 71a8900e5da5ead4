"""The pure parts of projections: decoding in bulk, reduction, keys, frontier, faults."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.change_event import ChangeEvent
from cdc.envelope import Operation
from cdc.errors import CdcError, EnvelopeError, SchemaMismatchError, ValueDecodeError
from cdc.lsn import Lsn
from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import UNCHANGED_PLACEHOLDER, decoder
from projections.changes.documents import key_text
from projections.changes.record import Record
from projections.changes.reducer import TopicReducer
from projections.changes.row_change import RowChange
from projections.common.fault import Fault, FaultError
from projections.errors import (
    KeylessChangeError,
    ProjectionError,
    SinkRefusedError,
    TruncateError,
)
from projections.planning.view_plan import Facts
from projections.publishing.frontier import SAMPLES_MAX, Frontier
from tests.oracles.sink_contract import latest

if TYPE_CHECKING:
    from projections.changes.reduced import Reduced

SCHEMA = TableSchema(
    TableName("public", "things"),
    (
        Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
        Column("note", ColumnKind.TEXT, "text"),
        Column("total", ColumnKind.NUMERIC, "numeric(12,2)", 12, 2),
    ),
    ("id",),
)
KEYLESS = TableSchema(SCHEMA.table, SCHEMA.columns)


def record(  # noqa: PLR0913  # a record has many parts
    op: str = "c",
    number: int = 1,
    lsn: int = 100,
    *,
    note: str | None = "n",
    order: int | None = 1,
    keyed: bool = True,
    after: dict[str, object] | None = None,
    offset: int = 0,
) -> Record:
    row = after or {"id": number, "note": note, "total": "1.50"}
    value = {
        "before": None if op != "d" else {"id": number, "note": None, "total": None},
        "after": None if op in "dt" else row,
        "source": {
            "schema": "public",
            "table": "things",
            "ts_ms": 5,
            "ts_us": 5001 + lsn,
            "lsn": lsn,
            "sequence": f'["{lsn - 1}","{lsn}"]',
            "txId": 7,
        },
        "transaction": None if order is None else {"id": "7:1", "total_order": order},
        "op": op,
    }
    key = orjson.dumps({"id": number}) if keyed else None
    return Record(key, orjson.dumps(value), "1", 0, offset)


records = st.builds(
    record,
    op=st.sampled_from("rcud"),
    number=st.integers(0, 3),
    lsn=st.integers(1, 50),
    note=st.none() | st.text(max_size=3),
    order=st.none() | st.integers(1, 3),
)


def reduced(schema: TableSchema, *taken: Record, facts: Facts | None = None) -> Reduced:
    reducer = TopicReducer(schema, facts)
    reducer.add(taken)
    return reducer.reduced()


def failing(done: Reduced) -> list[type[CdcError | ProjectionError]]:
    return [type(failure.error) for failure in done.failures]


def by_change_event(taken: list[Record]) -> list[RowChange]:
    """What `ChangeEvent.parse` makes of records: the meaning that bulk decoding must keep."""
    decode = decoder(SCHEMA)
    changes = []
    for key, value, epoch, *_ in taken:
        assert value is not None
        event = ChangeEvent.parse(key, value, int(epoch or 0))
        assert event.key is not None
        gone = event.operation is Operation.DELETE
        row = None if gone else decode(event.after or {})
        committed_at_us = 0 if event.snapshot else event.committed_at_us
        number = event.key["id"]
        changes.append(RowChange((number,), event.position.version, row, committed_at_us))
    return latest(changes)


@given(st.lists(records, max_size=20))
def test_bulk_decoding_says_what_change_events_say(taken: list[Record]) -> None:
    done = reduced(SCHEMA, *taken)

    assert by_change_event(taken) == done.changes
    assert (len(taken), len(taken), 0) == (done.records, done.accepted, done.filtered)


def test_tombstones_are_skipped() -> None:
    done = reduced(SCHEMA, record("d"), Record(b'{"id":1}', None, "1", 0, 1))

    assert [None] == [change.row for change in done.changes]
    assert (2, 1, 1) == (done.records, done.accepted, done.filtered)


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ({"id": 1, "note": "n", "total": "1.00", "colour": "red"}, "colour"),
        ({"id": 1, "note": "n"}, "total"),
    ],
    ids=["added", "dropped"],
)
def test_a_changed_table_is_refused_by_column(after: dict[str, object], named: str) -> None:
    reducer = TopicReducer(SCHEMA)

    with pytest.raises(SchemaMismatchError) as refused:
        reducer.add([record(after=after)])

    assert named in (refused.value.detail or "")


def test_a_truncate_takes_what_is_older_and_leaves_what_is_newer() -> None:
    done = reduced(
        SCHEMA, record("c", 1, 100), record("t", lsn=104, keyed=False), record("c", 2, 108)
    )

    assert [(2,)] == [change.key for change in done.changes]
    assert (1 << 56 | 104, 3, 3) == (done.truncated, done.records, done.accepted)


@pytest.mark.parametrize("op", ["u", "d"])
def test_a_changed_row_without_a_key_is_set_apart(op: str) -> None:
    done = reduced(KEYLESS, record(op, keyed=False), record("c", keyed=False, offset=1))

    assert ([KeylessChangeError], 1) == (failing(done), len(done.changes))


@pytest.mark.parametrize("op", ["c", "u", "d"])
def test_a_record_that_lacks_the_key_of_its_table_is_set_apart(op: str) -> None:
    assert [EnvelopeError] == failing(reduced(SCHEMA, record(op, keyed=False)))


def fact(op: str, kind: str | None, number: int = 1) -> Record:
    row = {"id": number, "type": kind}
    whole = orjson.loads(record(op, number, lsn=100 + number).value or b"")
    whole["before"] = row if op in "ud" else None
    whole["after"] = None if op in "dt" else row
    return record(op, number)._replace(value=orjson.dumps(whole))


FACTS = TableSchema(
    TableName("eventstore", "events"),
    (SCHEMA.columns[0], Column("type", ColumnKind.TEXT, "text", nullable=False)),
    ("id",),
)


@pytest.mark.parametrize(
    ("op", "kind", "deletes", "counts"),
    [
        ("c", "a", False, True),
        ("r", "a", True, True),
        ("c", "other", False, False),
        ("c", "$snapshot", False, False),
        ("u", "a", True, False),
        ("d", "a", False, False),
        ("d", None, False, False),
        ("d", "a", True, True),
        ("d", None, True, True),
        ("d", "other", True, False),
    ],
)
def test_of_events_only_those_count_that_happened_or_were_dropped(
    op: str, kind: str | None, *, deletes: bool, counts: bool
) -> None:
    done = reduced(FACTS, fact(op, kind), facts=Facts(frozenset({"a"}), deletes))

    assert (1, int(counts), int(not counts)) == (done.records, done.accepted, done.filtered)
    assert counts == (len(done.changes) == 1)


def test_a_truncate_of_events_is_set_apart() -> None:
    done = reduced(FACTS, fact("t", None), facts=Facts(frozenset({"a"}), deletes=False))

    assert ([TruncateError], 0) == (failing(done), done.truncated)


@pytest.mark.parametrize(
    "odd",
    [
        record()._replace(epoch=None),
        record()._replace(epoch="128"),
        record()._replace(epoch="one"),
        record()._replace(value=b"{"),
        record()._replace(value=b'{"op":"c","after":{}}'),
        record()._replace(value=b'{"op":"x","source":{}}'),
    ],
    ids=["no epoch", "epoch too great", "epoch no number", "no json", "foreign", "no operation"],
)
def test_a_record_that_is_no_change_is_set_apart_and_holds_up_no_other(odd: Record) -> None:
    done = reduced(SCHEMA, odd, record("c", 2, offset=1))

    assert ([EnvelopeError], [(2,)]) == (failing(done), [change.key for change in done.changes])
    assert odd == done.failures[0].records[-1]


def test_a_value_that_cannot_be_decoded_sets_its_record_apart_with_its_key() -> None:
    odd = record(after={"id": 1, "note": "n", "total": "much"})
    done = reduced(SCHEMA, odd, record("c", 2, offset=1))

    (failure,) = done.failures
    assert ((odd,), 1 << 56 | 100, (1,)) == (failure.records, failure.version, failure.key)
    assert [(2,)] == [change.key for change in done.changes]


@given(
    st.lists(
        st.builds(
            record,
            op=st.sampled_from("rcudt"),
            number=st.integers(0, 3),
            lsn=st.integers(1, 50),
            note=st.none() | st.sampled_from(["n", UNCHANGED_PLACEHOLDER]),
        )
        | st.just(record("c", 2, 30)._replace(value=b"{")),
        max_size=12,
    )
)
def test_what_is_decoded_together_is_what_each_says_by_itself(taken: list[Record]) -> None:
    odd = record(after={"id": 77, "note": "n", "total": "much"}, number=77, lsn=60)

    together, apart = reduced(SCHEMA, *taken), reduced(SCHEMA, *taken, odd)

    assert (together.changes, together.below) == (apart.changes, apart.below)
    assert (together.raws, together.truncated) == (apart.raws, apart.truncated)
    assert [*failing(together), ValueDecodeError] == sorted(
        failing(apart), key=lambda of: of is ValueDecodeError
    )


@pytest.mark.parametrize("keyed", [False, True], ids=["no key", "a key the connector chose"])
def test_rows_without_a_key_are_told_apart_by_position(*, keyed: bool) -> None:
    snapshot = [record("r", lsn=9, order=n, keyed=keyed, offset=n) for n in range(2)]
    copied = [record("c", lsn=10, order=n, keyed=keyed, offset=1 + n) for n in (1, 2)]

    done = reduced(KEYLESS, *snapshot, *copied, *copied)

    keys = [str(change.key[0]) for change in done.changes]
    assert (4, sorted(keys)) == (len(set(keys)), keys)


changes = st.lists(
    st.builds(
        lambda number, version, deleted: RowChange(
            (number,), version, None if deleted else {"version": version}, 0
        ),
        st.integers(0, 3),
        st.integers(1, 9),
        st.booleans(),
    ),
    max_size=20,
    unique_by=lambda change: (change.key, change.version),
)


@given(changes, st.randoms(use_true_random=False))
def test_the_newest_change_of_a_key_wins_in_any_order(taken: list[RowChange], random) -> None:
    shuffled = taken + taken
    random.shuffle(shuffled)

    reduced = latest(shuffled)

    newest: dict[object, RowChange] = {}
    for change in sorted(taken, key=lambda change: change.version):
        newest[change.key] = change
    assert {change.key: change for change in reduced} == newest


@given(st.lists(st.text(alphabet="a:\\", max_size=4), min_size=2, max_size=2), st.data())
def test_two_keys_never_share_a_text(parts: list[str], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.text(alphabet="a:\\", max_size=4), min_size=2, max_size=2))

    assert (key_text(parts) == key_text(others)) == (parts == others)


def test_the_position_at_which_the_slot_was_made_never_counts() -> None:
    frontier = Frontier(frozenset({"t"}))

    frontier.sample(Lsn(10), {("t", 0): 5})

    assert frontier.advance({("t", 0): 5}) is None


def test_a_position_counts_once_all_its_records_are_applied() -> None:
    frontier = Frontier(frozenset({"t"}))
    frontier.sample(Lsn(10), {("t", 0): 5})
    frontier.sample(Lsn(20), {("t", 0): 7, ("t", 1): 0, ("elsewhere", 0): 99})
    frontier.sample(Lsn(30), {("t", 0): 9})

    reached = [frontier.advance({("t", 0): offset}) for offset in (6, 7, 8, 9, 10)]

    assert [None, Lsn(20), None, Lsn(30), None] == reached


def test_another_slot_has_to_move_before_it_counts() -> None:
    frontier = Frontier(frozenset({"t"}))
    frontier.sample(Lsn(10), {})
    frontier.sample(Lsn(20), {("t", 0): 5})
    frontier.sample(None, {("t", 0): 5})
    frontier.sample(Lsn(5), {("t", 0): 6})

    assert frontier.advance({("t", 0): 6}) is None


def test_a_lagging_query_keeps_few_samples_and_the_oldest() -> None:
    frontier = Frontier(frozenset({"t"}))
    for number in range(3 * SAMPLES_MAX):
        frontier.sample(Lsn(number), {("t", 0): number})

    assert frontier.advance({("t", 0): 1}) == Lsn(1)
    assert frontier.advance({("t", 0): 3 * SAMPLES_MAX}) == Lsn(3 * SAMPLES_MAX - 1)


def test_a_typed_error_survives_a_stack_trace() -> None:
    error = SinkRefusedError('said "no" {', detail="}", hint=None)
    trace = f"Traceback ...\n  {FaultError(error)}\n\tat java"

    assert Fault.find(trace) == Fault.of(error)
    assert Fault.find("java.lang.Nothing") is None


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(SinkRefusedError("m", detail="d", hint="h")))  # noqa: S301

    assert (error.message, error.detail, error.hint) == ("m", "d", "h")


def test_importing_projections_loads_no_heavy_library() -> None:
    heavy = ("pyspark", "kafka", "psycopg", "deltalake", "redis", "opensearchpy", "pyarrow")
    script = f"import sys, cdc, projections; print([m for m in {heavy} if m in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"
