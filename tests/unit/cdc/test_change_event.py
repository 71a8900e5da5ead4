from __future__ import annotations

from typing import Any

import orjson
import pytest

from cdc.change_event import ChangeEvent
from cdc.envelope import Operation
from cdc.errors import EnvelopeError
from cdc.lsn import Lsn
from cdc.table import TableName


def record(operation: str, **changed: Any) -> bytes:
    source = {
        "schema": "public",
        "table": "orders",
        "lsn": 200,
        "sequence": '["100","200"]',
        "txId": 7,
        "ts_ms": 1_000,
        "ts_us": 1_000_001,
    }
    return orjson.dumps({
        "op": operation,
        "before": None,
        "after": {"id": 1},
        "source": source | changed.pop("source", {}),
        "transaction": {"id": "7:200", "total_order": 3},
        **changed,
    })  # fmt: skip


def test_a_streamed_change_stands_after_the_commit_before_it_at_its_own_lsn_and_number() -> None:
    event = ChangeEvent.parse(b'{"id":1}', record("u"), epoch=2)

    place = event.position
    assert (2, Lsn(100), Lsn(200), 3) == (place.epoch, place.commit_lsn, place.lsn, place.order)
    assert (TableName("public", "orders"), {"id": 1}) == (event.table, event.key)
    assert (7, 1_000_001, False) == (event.transaction_id, event.committed_at_us, event.snapshot)


def test_the_first_transaction_after_a_snapshot_knows_of_no_commit_before_it() -> None:
    event = ChangeEvent.parse(None, record("c", source={"sequence": '[null,"200"]'}), epoch=1)

    assert (Lsn(0), Lsn(200)) == (event.position.commit_lsn, event.position.lsn)


def test_a_row_that_a_snapshot_read_has_the_place_of_the_read() -> None:
    value = record("r", source={"sequence": '[null,"200"]', "snapshot": "last"}, transaction=None)

    event = ChangeEvent.parse(b'{"id":1}', value, epoch=1)

    assert event.snapshot
    assert 1 << 56 | 200 == event.position.version


def test_a_truncate_has_neither_key_nor_row() -> None:
    event = ChangeEvent.parse(None, record("t", after=None), epoch=1)

    assert (Operation.TRUNCATE, None, None) == (event.operation, event.key, event.after)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"op":"c"}',
        b'{"source":{}}',
        record("x"),
        record("c", op=None),
        record("c", source={"schema": 1, "sequence": "x"}),
        record("c", source={"sequence": '["a","b"]'}),
        record("c", source={"ts_us": None, "ts_ms": None}),
        record("c", transaction={"total_order": "many"}),
    ],
)
def test_what_the_connector_did_not_write_is_refused(value: bytes) -> None:
    with pytest.raises(EnvelopeError):
        ChangeEvent.parse(b'{"id":1}', value, epoch=1)


def test_a_key_that_is_not_json_is_refused() -> None:
    with pytest.raises(EnvelopeError):
        ChangeEvent.parse(b"\xff", record("c"), epoch=1)


@pytest.mark.parametrize(
    "changed",
    [
        {"before": [1]},
        {"after": "row"},
        {"transaction": [7]},
        {"transaction": {"total_order": "3"}},
        {"transaction": {"total_order": 1 << 63}},
        {"source": {"table": 7}},
        {"source": {"schema": None}},
        {"source": {"txId": "7"}},
        {"source": {"ts_us": "1000"}},
        {"source": {"ts_us": 1.5}},
        {"source": {"ts_us": None, "ts_ms": []}},
        {"source": {"sequence": [1, 2]}},
        {"source": {"sequence": "7"}},
        {"source": {"sequence": '["a","b"]'}},
        {"source": {"sequence": f'["1","{1 << 64}"]'}},
    ],
)
def test_a_record_of_another_shape_is_named_as_no_change(changed: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeError):
        ChangeEvent.parse(b'{"id":1}', record("u", **changed), epoch=1)
