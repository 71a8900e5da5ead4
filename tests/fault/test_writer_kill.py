"""The driver is killed before, amid and after its sinks' writes: nothing is lost, doubled or half.

Of twenty logs for each point a run takes three. A batch whose end was not noted is written again,
by all stores that had not come to it, and to a store that may have had half of it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import secrets
import signal
from random import Random
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from projections.definition.views import Store
from projections.planning.job_config import LedgerAddress, StoreAddresses
from projections.publishing.published_versions import Published
from projections.stores.factory import open_sink
from tests.programs import killed_writer
from tests.programs.killed_writer import TOTAL, Kill, Scenario, a_bank

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext
    from pathlib import Path

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

SEEDS = 20
BATCHES = 5
KILLS = 3


@pytest.fixture(scope="module")
def processes() -> ForkServerContext:
    """Makes processes that have loaded what they need and hold nothing of this one's."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.programs.killed_writer", "projections.stores.delta.sink"]
    )
    return context


@pytest.fixture
def stores(tmp_path: Path, search_url: str, cache_url: str) -> StoreAddresses:
    return StoreAddresses(tmp_path / "tables", search_url, cache_url, f"{secrets.token_hex(4)}:")


@pytest.mark.rotating("seed", range(SEEDS), 3)
@pytest.mark.parametrize("point", ["before", "amid", "after"])
def test_a_driver_killed_around_its_writes_loses_doubles_and_halves_nothing(
    stores: StoreAddresses, database: str, processes: ForkServerContext, point: str, seed: int
) -> None:
    chance = Random(f"{point} {seed}")  # noqa: S311  # no secret
    bank = a_bank(chance, BATCHES)
    ledger = LedgerAddress(database, "bank", 100)
    order = chance.sample(list(Store), 3)
    name = stores.cache_prefix.strip(":")
    scenario = Scenario(stores.tables.parent, stores, ledger, name, bank.batches, order)

    for batch in sorted(chance.sample(range(BATCHES), KILLS)):
        ended = _run(processes, scenario, Kill(batch, chance.choice(order), point))
        assert -signal.SIGKILL == ended or point == "amid"  # a store may have nothing to write
        assert all(TOTAL == total for total in _published(scenario))
    assert 0 == _run(processes, scenario, None)

    expected = [sorted(bank.rows[table].items()) for table in killed_writer.TABLES]
    for store in Store:
        assert expected == _stored(scenario, store), store
    published = _published(scenario)
    assert published
    assert {TOTAL} == set(published)


def _run(processes: ForkServerContext, scenario: Scenario, kill: Kill | None) -> int:
    path = scenario.home / "scenario"
    path.write_bytes(pickle.dumps((scenario, kill)))
    process = processes.Process(target=killed_writer.main, args=(path,))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the writer does not end"
    return process.exitcode


def _stored(scenario: Scenario, store: Store) -> list[list[tuple[int, int]]]:
    sink = open_sink(store, scenario.addresses)
    found = [
        sorted((int(str(row["id"])), int(str(row["amount"]))) for row in sink.documents(plan))
        for plan in scenario.plans
    ]
    sink.close()
    return found


def _published(scenario: Scenario) -> list[int]:
    """What the accounts of both tables come to, in each published version that has both."""
    tables = scenario.addresses.tables
    found = []
    for version in Published(tables, "bank").all():
        if len(version.views) == len(scenario.plans):
            amounts = [
                amount
                for view, at in version.views.items()
                for amount in DeltaTable(tables / view, at.version)
                .to_pyarrow_table(columns=["amount"])["amount"]
                .to_pylist()
            ]
            found.append(sum(amounts))
    return found
