"""The archive has each record exactly once, byte for byte, and is read as a table of changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from projections.archive.table import Archive, ArchiveRetention, record_key, record_value
from projections.errors import SinkUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

GIVEN = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("epoch", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
SENT_AT = datetime(2026, 11, 20, 10, tzinfo=UTC)
TOPIC, IDENTITY = "shop.public.orders", "first"


def envelope(number: int, **fields: Any) -> bytes:
    source = {
        "schema": "public",
        "table": "orders",
        "txId": 700 + number,
        "lsn": 1_000 + number,
        "sequence": f'["{900 + number}","{1_000 + number}"]',
        "ts_us": 1_000_000 * number,
    }
    row = {"id": number, "note": '"op":"d" - ü'}
    said = {"before": None, "after": row, "source": source} | fields
    return orjson.dumps(said | {"transaction": {"total_order": 3}, "op": fields.get("op", "c")})


def batch(
    first: int, values: Sequence[bytes | None], partition: int = 0, key: bytes | None = b'{"id":1}'
) -> pa.RecordBatch:
    rows = [
        {
            "topic": TOPIC,
            "partition": partition,
            "offset": first + number,
            "timestamp": SENT_AT,
            "key": key,
            "value": value,
            "epoch": "2",
            "headers": [{"key": "headwater.epoch", "value": b"2"}],
        }
        for number, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=GIVEN)


def read(archive: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(archive).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def test_a_change_is_a_row_and_its_record_is_there_byte_for_byte(tmp_path: Path) -> None:
    values = [
        envelope(1),
        envelope(2, op="d", before={"id": 2}, after=None),
        None,
        b"no envelope",
        b'{"after":{"id":4},"before":null,"source":{}}',
        b'{"before":null, "after":null, "source":{"a":1}}',
        b'{"before":null,"after":"\xff","source":{}}',
    ]
    archive = Archive(tmp_path / "shop")

    added = archive.append(
        [batch(0, values), batch(7, [envelope(3)], key=b"\xff")],
        {(TOPIC, 0): 8},
        {TOPIC: IDENTITY},
    )

    rows = read(tmp_path / "shop")
    assert 8 == added
    assert [*values, envelope(3)] == [record_value(row) for row in rows]
    assert [b'{"id":1}'] * 7 + [b"\xff"] == [record_key(row) for row in rows]
    assert ["c", "d", None, None, None, None, None, None] == [row["op"] for row in rows]
    changed = {
        "source_table": "public.orders",
        "op": "d",
        "epoch": 2,
        "commit_lsn": 902,
        "lsn": 1_002,
        "total_order": 3,
        "transaction_id": 702,
        "committed_at": datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC),
        "recorded_at": SENT_AT,
        "before": '{"id":2}',
        "after": None,
        "headers": [{"key": "headwater.epoch", "value": b"2"}],
    }
    assert changed == {name: rows[1][name] for name in changed}


def test_records_that_are_given_again_are_there_once(tmp_path: Path) -> None:
    names, table = {TOPIC: IDENTITY}, tmp_path / "shop"
    values = [envelope(number) for number in range(10)]
    Archive(table).append([batch(0, values[:4])], {(TOPIC, 0): 4, (TOPIC, 1): 0}, names)

    # killed after it was written, so given again
    assert 0 == Archive(table).append([batch(0, values[:4])], {(TOPIC, 0): 4}, names)
    # its checkpoint was lost: from the beginning, in other batches, with what came since
    ends = {(TOPIC, 0): 6, (TOPIC, 1): 2}
    again = [batch(0, values[:6]), batch(0, values[8:], partition=1)]
    assert 4 == Archive(table).append(again, ends, names)

    places = [(row["partition"], row["offset"]) for row in read(table)]
    assert [(0, n) for n in range(6)] + [(1, 0), (1, 1)] == places
    assert ends == Archive(table).ends(dict.fromkeys(ends, IDENTITY))


def test_a_batch_that_breaks_off_adds_nothing(tmp_path: Path) -> None:
    def broken() -> Any:
        yield batch(0, [envelope(1)])
        raise SinkUnavailableError("the reader is gone")

    archive = Archive(tmp_path / "shop")
    with pytest.raises(SinkUnavailableError, match="the reader is gone"):
        archive.append(broken(), {(TOPIC, 0): 1}, {TOPIC: IDENTITY})

    assert {} == archive.ends({(TOPIC, 0): IDENTITY})
    assert 1 == archive.append([batch(0, [envelope(1)])], {(TOPIC, 0): 1}, {TOPIC: IDENTITY})


def test_a_topic_that_is_made_anew_begins_anew(tmp_path: Path) -> None:
    archive, ends = Archive(tmp_path / "shop"), {(TOPIC, 0): 1}
    archive.append([batch(0, [envelope(1)])], ends, {TOPIC: IDENTITY})

    assert 1 == archive.append([batch(0, [envelope(2)])], ends, {TOPIC: "second"})


def test_upkeep_makes_one_file_of_many_and_removes_days_that_are_not_kept(tmp_path: Path) -> None:
    archive, names = Archive(tmp_path / "shop"), {TOPIC: IDENTITY}
    for number in range(6):
        one = batch(number, [envelope(number)])
        archive.append([one], {(TOPIC, 0): number + 1}, names)
    today = datetime.now(UTC).date()

    archive.maintain(ArchiveRetention(), today)
    table = DeltaTable(tmp_path / "shop")
    assert (1, 6) == (len(table.file_uris()), len(read(tmp_path / "shop")))
    archive.maintain(ArchiveRetention(days=3), today + timedelta(days=3))
    assert 6 == len(read(tmp_path / "shop"))
    archive.maintain(ArchiveRetention(days=3), today + timedelta(days=4))
    assert [] == read(tmp_path / "shop")
    assert {(TOPIC, 0): 6} == archive.ends({(TOPIC, 0): IDENTITY}), "it would take them again"
    assert 0 == archive.append([one], {(TOPIC, 0): 6}, names)


def test_files_are_passed_over_by_what_changes_are_asked_for_by(tmp_path: Path) -> None:
    Archive(tmp_path / "shop").append(
        [batch(5, [envelope(5), envelope(6)])], {(TOPIC, 0): 7}, {TOPIC: IDENTITY}
    )

    added = pa.table(DeltaTable(tmp_path / "shop").get_add_actions(flatten=True))
    (file,) = added.to_pylist()
    assert (1_005, 1_006) == (file["min.lsn"], file["max.lsn"])
    assert "min.after" not in file
    assert isinstance(file["partition.ingested_on"], date)


def test_an_archive_of_whole_records_is_put_beside(tmp_path: Path) -> None:
    before = pa.schema([("topic", pa.string()), ("value", pa.binary())])
    DeltaTable.create(str(tmp_path / "shop"), before)

    Archive(tmp_path / "shop").append([batch(0, [envelope(1)])], {(TOPIC, 0): 1}, {TOPIC: IDENTITY})

    assert 1 == len(read(tmp_path / "shop"))
    assert DeltaTable.is_deltatable(str(tmp_path / "shop.before"))
