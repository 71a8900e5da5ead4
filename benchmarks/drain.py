"""Draining 500,000 changes that wait in the slot: our connector beside a stock one.

Half of them are inserts, two fifths updates, a tenth deletes, in transactions of a hundred. All
slots are made first, so one workload waits in each of them; then the connectors drain theirs one
after the other, ours and the stock one in turns. The time is that from the first record in the
topic to the last: what a connector needs to start is left out, for both. The limit is Postgres
decoding the same changes into nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

import psycopg

from benchmarks import streaming
from benchmarks.result import Report, faster, smaller
from benchmarks.streaming import DEADLINE_S, INSERT, OURS, SIDES, STOCK, Capture, say
from cdc.broker.client.admin import consumer
from cdc.broker.topics.offsets import partitions

if TYPE_CHECKING:
    from headwater.runtime import Endpoints

RATE_RATIO: Final = 1.5
BYTES_RATIO: Final = 0.1

_CHANGES: Final = 500_000
_CHANGES_QUICK: Final = 50_000
_CHANGES_WARM: Final = 5_000
_ROUNDS: Final = 2
_OF_BLOCK: Final = 100  # 50 inserts, 40 updates, 10 deletes
_RECORDS_OF_BLOCK: Final = 110  # each delete has a tombstone

# Each block of ids is inserted by one transaction and changed by the next.
_BLOCKS: Final = """
DO $$
BEGIN
    FOR block IN {first}..{last} LOOP
        {insert};
        UPDATE orders SET status = 'changed', total = total + 1
         WHERE id BETWEEN (block - 1) * 50 + 1 AND (block - 1) * 50 + 40;
        DELETE FROM orders WHERE id BETWEEN (block - 1) * 50 + 41 AND block * 50;
        COMMIT;
    END LOOP;
END $$
"""
_DECODE_ONLY: Final = """
CREATE PUBLICATION decode_only FOR TABLE orders;
SELECT pg_create_logical_replication_slot('decode_only', 'pgoutput');
"""
_DECODE: Final = """
SELECT count(*) FROM pg_logical_slot_peek_binary_changes(
    'decode_only', NULL, NULL, 'proto_version', '1', 'publication_names', 'decode_only')
"""


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    size_bytes: int
    right: bool


def run(quick: bool) -> Report:
    """Measures; `quick` takes a tenth of the changes and one round."""
    changes = _CHANGES_QUICK if quick else _CHANGES
    with streaming.servers() as endpoints:
        _round(endpoints, "warm", _CHANGES_WARM, 1)  # classes loaded, code compiled, for both
        runs, limit_s = _round(endpoints, "full", changes, 1 if quick else _ROUNDS)
    seconds = {side: median(found.seconds for found in of) for side, of in runs.items()}
    sizes = {side: median(found.size_bytes for found in of) for side, of in runs.items()}
    return Report(
        "drain",
        all(found.right for of in runs.values() for found in of),
        (
            faster(
                f"drain of {changes:,} changes, seconds",
                ours=seconds[OURS],
                peer=seconds[STOCK],
                limit=limit_s,
                target=RATE_RATIO,
            ),
            smaller(
                "topic, bytes", ours=sizes[OURS], peer=sizes[STOCK], limit=None, target=BYTES_RATIO
            ),
        ),
    )


def _round(
    endpoints: Endpoints, label: str, changes: int, rounds: int
) -> tuple[dict[str, list[_Run]], float]:
    dsn = streaming.make_database(endpoints, f"drain_{label}")
    blocks = changes // _OF_BLOCK
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(INSERT.format(first=1, last=50).encode())
    captures = [
        streaming.capture(endpoints, dsn, side, f"{label}_{number}")
        for number in range(rounds)
        for side in (SIDES if number % 2 == 0 else SIDES[::-1])
    ]
    for found in captures:
        found.start()
        found.pause()
    _decode_only(dsn)
    _write(dsn, blocks)
    rows = streaming.expected(dsn)
    runs: dict[str, list[_Run]] = {side: [] for side in SIDES}
    for found in captures:
        done = _drain(found, blocks * _RECORDS_OF_BLOCK, rows, check=not runs[found.side])
        say(f"{label} {found.side}: {done.seconds:.2f} s, {done.size_bytes / 1e6:.1f} MB")
        runs[found.side].append(done)
        found.remove()
    return runs, _decoding_s(dsn)


def _write(dsn: str, blocks: int) -> None:
    insert = INSERT.format(first="block * 50 + 1", last="block * 50 + 50").strip()
    statement = _BLOCKS.format(first=1, last=blocks, insert=insert)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def _drain(capture: Capture, records: int, rows: dict[int, int], *, check: bool) -> _Run:
    deadline = time.monotonic() + DEADLINE_S
    began = None
    with consumer(capture.spec.kafka_bootstrap) as client:
        places = partitions(client, [capture.topic])
        resuming = threading.Thread(target=capture.resume)  # records come before it returns
        resuming.start()
        while (there := sum(client.end_offsets(places).values())) < records:
            if began is None and there:
                began = time.monotonic()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{capture.topic} does not reach {records} records")
            time.sleep(0.01)
        seconds = time.monotonic() - (began or time.monotonic())
        resuming.join()
    size = capture.size_bytes()
    capture.pause()  # the check shall not share the processors
    return _Run(seconds, size, not check or _right(capture, records, rows))


def _right(capture: Capture, records: int, rows: dict[int, int]) -> bool:
    """Whether the topic's changes, one after the other, end in the table's rows."""
    state = {row["id"]: streaming.digest(row) for row in _first_block(capture.spec.dsn)}
    count = 0
    for record in streaming.read(capture.spec.kafka_bootstrap, capture.topic):
        count += 1
        if record.value is None:
            continue
        change = streaming.envelope(record.value)
        if change["op"] == "d":
            del state[change["before"]["id"]]
        else:
            state[change["after"]["id"]] = streaming.digest(change["after"])
    return count == records and state == rows


def _first_block(dsn: str) -> list[dict[str, object]]:
    # as it was before the slots were made
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (LIKE public.orders)")
        connection.execute(INSERT.format(first=1, last=50).encode())
        rows = connection.execute("SELECT id, status, total::text, note FROM orders").fetchall()
        connection.rollback()
    return [dict(zip(("id", "status", "total", "note"), row, strict=True)) for row in rows]


def _decode_only(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in _DECODE_ONLY.strip().splitlines():
            connection.execute(statement.encode())


def _decoding_s(dsn: str) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.monotonic()
        connection.execute(_DECODE)
        seconds = time.monotonic() - began
        connection.execute("SELECT pg_drop_replication_slot('decode_only')")
    return seconds
