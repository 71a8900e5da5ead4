from __future__ import annotations

from dataclasses import dataclass, field

import orjson
from hypothesis import given
from hypothesis import strategies as st

from cdc.broker.producing.last_record import LastRecords
from cdc.change_event import EPOCH_HEADER


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    version: int = 0
    topic: str = "t"
    partition: int = 0
    offset: int = 0
    headers: list[tuple[str, bytes]] = field(default_factory=lambda: [(EPOCH_HEADER, b"1")])


def record(key: int, lsn: int, operation: str) -> Record:
    read = operation == "r"
    sequence = [None, str(lsn)] if read else [str(lsn - 1), str(lsn)]
    row = {"id": key, "note": '"op":"r"'}  # which a value may say, in quotes of its own
    value = {
        "before": row if operation == "d" else None,
        "after": None if operation == "d" else row,
        "source": {
            "schema": "public",
            "table": "t",
            "sequence": orjson.dumps(sequence).decode(),
            "lsn": lsn,
            "ts_ms": 0,
            "txId": 1,
        },
        "op": operation,
        "transaction": {"total_order": 0 if read else 1},
    }
    return Record(orjson.dumps({"id": key}), orjson.dumps(value), lsn)


CHANGES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from("cud")), min_size=1, max_size=12
).map(lambda found: [record(key, 10 * n, op) for n, (key, op) in enumerate(found, 1)])


@given(changes=CHANGES, data=st.data())
def test_after_it_the_last_record_of_every_key_is_the_newest(
    changes: list[Record], data: st.DataObject
) -> None:
    """Reads, each of some position, arrive anywhere between the changes."""
    topic = [one for change in changes for one in with_tombstone(change)]
    for key in data.draw(st.lists(st.integers(1, 3), max_size=6)):
        lsn = data.draw(st.integers(1, 10 * len(changes))) * 10 + 5
        topic.insert(data.draw(st.integers(0, len(topic))), record(key, lsn, "r"))

    settle(topic)

    for key in {change.key for change in changes}:
        mine = [one for one in topic if one.key == key]
        best = max(mine, key=lambda one: one.version)
        if not is_a(best, "r"):  # else a read is newer than every change that there was
            assert (None if is_a(best, "d") else best.value) == mine[-1].value


def settle(topic: list[Record]) -> None:
    followed, seen = LastRecords(), 0
    while seen < len(topic):
        for one in topic[seen:]:
            followed.take(one)
        seen = len(topic)
        topic += [copy for one, _ in followed.overtaken() for copy in with_tombstone(one)]


def with_tombstone(change: Record) -> list[Record]:
    return [change, Record(change.key, None)] if is_a(change, "d") else [change]


def is_a(one: Record, operation: str) -> bool:
    return f'"op":"{operation}"'.encode() in (one.value or b"")


def test_rows_that_were_read_alone_need_no_memory() -> None:
    followed = LastRecords()
    for key in range(100):
        followed.take(record(key, 5, "r"))

    assert [] == followed.overtaken()
    assert not followed._newest
