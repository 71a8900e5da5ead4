"""Money moves between tables; whoever reads the published tables never sees any missing."""

from __future__ import annotations

import subprocess
import threading
from random import Random
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable

from cdc.lsn import Lsn
from headwater.reading import sql
from headwater.reading.sql import QueryError
from projections.publishing.published_versions import Published
from projections.publishing.stable_table import StableTable
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [pytest.mark.integration, pytest.mark.fault, pytest.mark.timeout(600)]

ACCOUNTS = 40
TOTAL = 2 * ACCOUNTS * 1_000
WHOLE = """
SELECT (SELECT sum(amount) FROM {0}_checking) + (SELECT sum(amount) FROM {0}_savings) AS total,
       (SELECT count(*) FROM {0}_transfers) AS transfers,
       (SELECT coalesce(sum(amount), 0) FROM {0}_transfers) AS moved,
       (SELECT sum(amount) FROM {0}_savings) - {1} AS saved
"""


class Bank(threading.Thread):
    """Moves money: two rows change and a third is written in each transaction, some of many."""

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(name=f"bank {seed}")
        self._dsn = dsn
        self._chance = Random(seed)  # noqa: S311
        self.ended = threading.Event()
        self.moved = 0

    def run(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self.ended.wait(0.1):
                # a long one now and then: batches end amid it
                for _ in range(self._chance.choice([1] * 39 + [200])):
                    self._move(connection)
                if self._chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    self.moved += 1

    def _move(self, connection: psycopg.Connection) -> None:
        one, amount = self._chance.randint(1, ACCOUNTS), self._chance.randint(-50, 50)
        change = "UPDATE {} SET amount = amount + %s WHERE id = %s"
        with connection.transaction():
            connection.execute("SELECT FROM checking WHERE id = %s FOR UPDATE", (one,))
            connection.execute(change.format("checking"), (-amount, one))
            connection.execute(change.format("savings"), (amount, one))
            connection.execute("INSERT INTO transfers (amount) VALUES (%s)", (amount,))


class Reader(threading.Thread):
    """Reads all three tables in one query, again and again."""

    def __init__(self, tables: Path, source: str) -> None:
        super().__init__(name="reader")
        self._tables, self._sql = tables, WHOLE.format(source, TOTAL // 2)
        self.ended = threading.Event()
        self.wrong: list[dict[str, int]] = []
        self.transfers: list[int] = []

    def run(self) -> None:
        while not self.ended.wait(0.1):
            try:
                (row,) = sql.run(self._sql, self._tables).to_pylist()
            except QueryError:
                assert not self.transfers, "what could be read cannot be read any more"
                continue  # it has not begun
            if row["total"] != TOTAL or row["moved"] != row["saved"]:
                self.wrong.append(row)
            self.transfers.append(row["transfers"])


@pytest.fixture
def bank(database: str, capture: Callable[..., Captured]) -> Captured:
    with psycopg.connect(database, autocommit=True) as connection:
        for name in ("checking", "savings"):
            connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, amount int)")
            connection.execute(
                f"INSERT INTO {name} SELECT n, 1000 FROM generate_series(1, {ACCOUNTS}) n"  # noqa: S608
            )
        connection.execute("CREATE TABLE transfers (id bigserial PRIMARY KEY, amount int NOT NULL)")
    return capture("checking", "savings", "transfers", topic_partitions=3)


def test_a_reader_of_any_tables_sees_whole_transactions_also_while_drivers_are_killed(
    bank: Captured, view_job: Callable[..., ViewJob]
) -> None:
    job = view_job(bank, to=("table",), own_jvm=True)
    tables, source = job.spec.config.addresses.tables, bank.spec.name
    published, reader = Published(tables, source), Reader(tables, source)
    banks = [Bank(bank.database, seed) for seed in (1, 2)]
    threads: list[Bank | Reader] = [*banks, reader]
    job.start()
    for thread in threads:
        thread.start()
    try:
        chance = Random(7)  # noqa: S311
        for _ in range(2):
            _await_versions(published, 4)
            assert job.process is not None
            with pytest.raises(subprocess.TimeoutExpired):
                job.process.wait(chance.random() * 2)  # to be anywhere in a batch
            job.kill()
            job.start()
        _await_versions(published, 4)
        wait_until(lambda: len(set(reader.transfers)), "what is read", accept=lambda n: n > 4)
    finally:
        for thread in threads:
            thread.ended.set()
            thread.join()
    assert [] == job.catch_up()

    assert [] == reader.wrong
    assert sorted(reader.transfers) == reader.transfers, "a reader was taken back in time"
    with psycopg.connect(bank.database) as connection:
        (count,) = connection.execute("SELECT count(*) FROM transfers").fetchone() or (0,)
    (last,) = sql.run(WHOLE.format(source, TOTAL // 2), tables).to_pylist()
    assert (count, TOTAL) == (last["transfers"], last["total"])
    _every_version_is_whole(published, tables, source)
    _stable_paths_are_there(published, tables)


def _stable_paths_are_there(published: Published, tables: Path) -> None:
    """The running job brings the path of every view to what is published."""
    for view, table in published.latest().views.items():
        stable = StableTable(tables, view)
        wait_until(
            stable.content,
            f"version {table.version} of {view}",
            accept=lambda content, version=table.version: (  # type: ignore[misc]
                content is not None and content.version == version
            ),
            timeout_s=LONG_S,
        )
        rows = DeltaTable(str(stable.path)).to_pyarrow_table().sort_by("id")
        assert rows == DeltaTable(str(tables / view), table.version).to_pyarrow_table().sort_by(
            "id"
        )


def _every_version_is_whole(published: Published, tables: Path, source: str) -> None:
    # the first may lack a view whose rows were still on their way
    versions = [version for version in published.all() if len(version.views) == 3]
    for version in versions:
        (row,) = sql.run(
            WHOLE.format(source, TOTAL // 2), tables, str(version.applied_through)
        ).to_pylist()
        assert (TOTAL, row["moved"]) == (row["total"], row["saved"])
    assert len(versions) > 8
    assert [Lsn(v.lsn) for v in versions] == sorted({v.applied_through for v in versions})


def _await_versions(published: Published, more: int) -> None:
    before = published.latest()
    wanted = more + (before.number if before else 0)
    wait_until(
        published.latest,
        f"published version {wanted}",
        accept=lambda found: found is not None and found.number >= wanted,
        timeout_s=LONG_S,
    )
