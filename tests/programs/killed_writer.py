"""A driver in short, to be killed: batches of a log into all stores, each with its checkpoint.

It is the job without Spark: the same `BatchWriter` takes the same batches, store after store, and
notes after each write that the batch is done. It runs in a process of its own, which ends itself
with SIGKILL where it is told to.
"""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from cdc.table import Column, ColumnKind, TableName, TableSchema
from projections.changes.record import Record
from projections.definition.views import Store
from projections.job import batch_writer
from projections.job.batch_writer import BatchWriter
from projections.job.record_runs import RECORD_COLUMNS
from projections.planning.view_plan import ViewPlan
from projections.publishing.boundary import CompleteThrough
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from random import Random

    from projections.changes.row_change import Applied, RowChange
    from projections.changes.sink import Sink
    from projections.planning.job_config import LedgerAddress, StoreAddresses

TABLES = ("checking", "savings")
BEAT = "bank.headwater.heartbeat"
TOTAL = 1_000
_COLUMNS = (
    Column("id", ColumnKind.INTEGER, "bigint", nullable=False),
    Column("amount", ColumnKind.INTEGER, "bigint"),
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records by topic, in their order, and how far they and those before have all there is."""

    runs: dict[str, list[Record]]
    reach: CompleteThrough | None


@dataclass(frozen=True, slots=True)
class Kill:
    """Where the process ends itself: at a store's part of a batch, `before`, `amid` or `after`."""

    batch: int
    store: Store
    point: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is written.

    Attributes:
        home: Where the checkpoints are.
        addresses: The stores.
        ledger: Where what cannot be written would wait.
        name: Makes the views' names its own, as the stores are shared.
        batches: The log.
        order: The stores in the order in which they are written.
    """

    home: Path
    addresses: StoreAddresses
    ledger: LedgerAddress
    name: str
    batches: Sequence[Batch]
    order: Sequence[Store]

    @property
    def plans(self) -> tuple[ViewPlan, ...]:
        """One view for each table."""
        return tuple(
            ViewPlan(
                f"{table}_{self.name}",
                "bank",
                f"bank.public.{table}",
                TableSchema(TableName("public", table), _COLUMNS, ("id",)),
                ("id",),
                frozenset(Store),
            )
            for table in TABLES
        )


@dataclass(slots=True)
class Bank:
    """Accounts in two tables between which amounts are moved; the log of that.

    Attributes:
        rows: By table, the amount of each account, as of now.
        batches: The log, cut into batches.
    """

    rows: dict[str, dict[int, int]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)


def a_bank(chance: Random, batches: int) -> Bank:
    """Returns a bank after some transactions; each keeps the sum of all amounts."""
    bank = Bank({"checking": {1: TOTAL}, "savings": {}})
    sent: dict[str, list[tuple[Record, int]]] = {f"bank.public.{name}": [] for name in TABLES}
    sent[BEAT] = []
    lsn, commit = 100, None

    def send(table: str, key: int, amount: int | None) -> None:
        nonlocal lsn
        topic = BEAT if table == BEAT else f"bank.public.{table}"
        row = None if amount is None else {"id": key, "amount": amount}
        record = _record(table, key, row, (commit, lsn), len(sent[topic]))
        sent[topic].append((record, begun))
        lsn += 10

    for number in range(batches * 4):
        begun = lsn
        if number == 0:
            send("checking", 1, TOTAL)
        else:
            _transfer(bank.rows, chance, send)
        lsn += 10
        commit = lsn
        begun = lsn
        send(BEAT, 1, 0)
        lsn += 10
        commit = lsn
    bank.batches = list(_cut(sent, chance, batches, lsn))
    return bank


def _transfer(rows: dict[str, dict[int, int]], chance: Random, send: Any) -> None:
    for _ in range(chance.randint(1, 3)):
        one = chance.choice([name for name in TABLES if rows[name]])
        key = chance.choice(sorted(rows[one]))
        other, to = chance.choice(TABLES), chance.randint(1, 4)
        if (one, key) == (other, to):
            continue
        moved = chance.choice([rows[one][key], chance.randint(0, rows[one][key])])
        rows[one][key] -= moved
        rows[other][to] = rows[other].get(to, 0) + moved
        if rows[one][key]:
            send(one, key, rows[one][key])
        else:
            del rows[one][key]
            send(one, key, None)
        send(other, to, rows[other][to])


def _record(
    table: str, key: int, row: dict[str, int] | None, at: tuple[int | None, int], offset: int
) -> Record:
    after, lsn = at
    sequence = orjson.dumps([None if after is None else str(after), str(lsn)]).decode()
    source = {"schema": "public", "table": table, "ts_us": 5, "lsn": lsn, "sequence": sequence}
    value = {
        "before": {"id": key, "amount": None},
        "after": row,
        "source": source,
        "op": "d" if row is None else "u",
        "transaction": {"id": f"7:{lsn}", "total_order": 1},
    }
    return Record(orjson.dumps({"id": key}), orjson.dumps(value), "1", 0, offset)


def _cut(
    sent: dict[str, list[tuple[Record, int]]], chance: Random, batches: int, end: int
) -> Iterator[Batch]:
    """Cuts topics anywhere, some far ahead of others; the last batch has all that is left."""
    reached = 0
    for number in range(batches):
        runs = {}
        for topic, records in sent.items():
            share = len(records) // (batches - number)
            taken = len(records) if number == batches - 1 else chance.randint(0, share * 2)
            runs[topic] = [record for record, _ in records[:taken]]
            sent[topic] = records[taken:]
        missing = min((begun for rest in sent.values() for _, begun in rest), default=end + 1)
        reached = max(reached, missing - 1)
        since = {f"{table}": 0 for table in TABLES}
        yield Batch(runs, CompleteThrough(1, reached, since))


def run(scenario: Scenario, kill: Kill | None) -> None:
    """Goes on after the last batch that each store has done, to the end or to the kill."""
    names = {plan.name.partition("_")[0]: plan.name for plan in scenario.plans}
    for number, batch in enumerate(scenario.batches):
        for store in scenario.order:
            if number < _done(scenario, store):
                continue
            point = kill.point if kill and (kill.batch, kill.store) == (number, store) else None
            _end_if(point == "before")
            reach = batch.reach
            if reach is not None:
                views = {names[table]: since for table, since in reach.views.items()}
                reach = replace(reach, views=views)
            each = BatchWriter(
                store, scenario.plans, scenario.addresses, scenario.ledger, {}, reach
            )
            sink = open_sink(store, scenario.addresses)
            batch_writer._sinks[store, scenario.addresses] = (
                _Halved(sink) if point == "amid" else sink
            )
            if number == 0:
                list(each.prepare([]))
            list(each.write(_columns(batch)))
            _end_if(point is not None)
            _note(scenario, store, number + 1)
            sink.close()


class _Halved:
    """A sink that takes half of what it is first given for good, and then ends the process."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        self._sink.apply(plan, changes[: len(changes) // 2])
        _end_if(True)
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)


def _end_if(wanted: bool) -> None:
    if wanted:
        os.kill(os.getpid(), signal.SIGKILL)


def _columns(batch: Batch) -> Iterable[pa.RecordBatch]:
    for topic, records in batch.runs.items():
        if records:
            columns = [list(column) for column in zip(*records, strict=True)]
            yield pa.RecordBatch.from_pydict(
                {"topic": [topic] * len(records), **dict(zip(RECORD_COLUMNS, columns, strict=True))}
            )


def _done(scenario: Scenario, store: Store) -> int:
    try:
        return int((scenario.home / f"{store}.done").read_text())
    except FileNotFoundError:
        return 0


def _note(scenario: Scenario, store: Store, batches: int) -> None:
    path = scenario.home / f"{store}.done"
    path.with_suffix(".new").write_text(str(batches))
    path.with_suffix(".new").replace(path)


def main(path: Path) -> None:
    """Runs what lies in a file."""
    run(*pickle.loads(path.read_bytes()))  # noqa: S301  # the test's own
