"""The bank in production: forked workers, SIGKILL, two releases at once, a pooler."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import ExitStack
from decimal import Decimal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from eventstore import EventStore, Redacted
from eventstore.master_key import master_key_line, new_master_keys, read_master_keys
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.subscription.control import Subscriptions
from examples.bank.balances import TABLE
from examples.bank.domain import Account, Payment
from tests.fix_bank import ROOT, Clients, Release, earlier_release
from tests.fix_pooler import pgbouncer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.fault]

ACCOUNTS = ["1", "2", "3", "4", "5"]
CONFIRM_S = "2"


@pytest.fixture(params=["direct", "pgbouncer"])
def start(
    request: pytest.FixtureRequest, store_dsn: str, app_dsn: str, tmp_path: Path
) -> Iterator[Callable[[Path], Release]]:
    """Starts releases of the bank as a role without other rights, with or without a pooler."""
    keys = new_master_keys("2026")
    (tmp_path / "keys").touch(mode=0o600)
    (tmp_path / "keys").write_text(master_key_line(keys, "2026"))
    with psycopg.connect(store_dsn) as owner:
        owner.execute(TABLE)
        owner.execute(f'GRANT SELECT, INSERT, UPDATE ON balances TO "{urlsplit(app_dsn).username}"')
    with ExitStack() as started:
        pooled = app_dsn
        if request.param == "pgbouncer":
            (tmp_path / "pgbouncer").mkdir()
            pooled = started.enter_context(pgbouncer(app_dsn, tmp_path / "pgbouncer"))
        environment = {
            "BANK_DSN": pooled,
            "BANK_DIRECT_DSN": app_dsn,
            "BANK_KEYS": str(tmp_path / "keys"),
            "BANK_CONFIRM_S": CONFIRM_S,
        }

        def start(folder: Path) -> Release:
            release = Release(folder, environment, tmp_path / "bank.log")
            started.callback(release.close)
            return release

        yield start


@pytest.fixture
def store(start, store_dsn, tmp_path) -> Iterator[EventStore]:
    """The owner's view of what there is."""
    ring = PostgresKeyRing(store_dsn, read_master_keys(tmp_path / "keys"))
    with EventStore(
        PostgresEventLog(store_dsn), deciders=[Account, Payment], keyring=ring
    ) as store:
        yield store
    ring.close()


def opened(clients: Clients) -> None:
    for account in ACCOUNTS:
        fields = {"account": account, "owner": f"owner-{account}", "name": f"Name {account}"}
        assert clients.post("/open-account", email=f"{account}@bank", **fields)
        assert clients.post("/deposit", account=account, amount="20")
    fields = {"account": "6", "owner": "owner-6", "name": "Name"}
    assert clients.post("/open-account", email="1@bank", **fields) is None


def ended_payments(store: EventStore) -> dict[str, list[str]]:
    """The types of each payment's events."""
    found: dict[str, list[str]] = {}
    for recorded in store.read_category("payment"):
        found.setdefault(recorded.event.payment, []).append(recorded.type)
    return found


def all_ended(store: EventStore) -> bool:
    ends = {"bank.payment_completed", "bank.payment_failed"}
    return all(set(types) & ends for types in ended_payments(store).values())


def table(dsn: str) -> dict[str, Decimal]:
    with psycopg.connect(dsn) as connection:
        return dict(connection.execute("SELECT account, balance FROM balances").fetchall())


def expected_balances(clients: Clients, completed: set[str]) -> dict[str, Decimal]:
    """What the ledger says that each account has."""
    found = dict.fromkeys(ACCOUNTS, Decimal(0))
    for body in clients.commands("/deposit"):
        found[body["account"]] += Decimal(body["amount"])
    for body in clients.commands("/withdraw"):
        found[body["account"]] -= Decimal(body["amount"])
    for body in clients.commands("/request-payment"):
        if body["payment"] in completed:
            found[body["source"]] -= Decimal(body["amount"])
            found[body["target"]] += Decimal(body["amount"])
    return found


def test_nothing_is_lost_or_doubled_while_two_releases_run_and_processes_are_killed(
    start, store, store_dsn, tmp_path, run_seed
):
    earlier = start(earlier_release(tmp_path))
    clients = Clients([earlier.port])
    opened(clients)
    chance = random.Random(run_seed)  # noqa: S311  # repeats with the run
    traffic = [
        threading.Thread(target=clients.traffic, args=(ACCOUNTS, run_seed + number), daemon=True)
        for number in range(4)
    ]

    def after(count: int, *releases: Release) -> None:
        """Waits for more commands; meanwhile kills a worker or a runner every few of them."""
        wanted = len(clients.accepted) + count
        while (done := len(clients.accepted)) < wanted:
            wait_until(lambda done=done: len(clients.accepted) > done + 5)
            chance.choice(releases).kill_one(chance)

    for thread in traffic:
        thread.start()
    after(40, earlier)
    later = start(ROOT)
    clients.ports = [earlier.port, later.port]
    later.wait()
    after(60, earlier, later)
    later.kill()
    later = start(ROOT)
    clients.ports = [earlier.port, later.port]
    later.wait()
    after(60, earlier, later)
    clients.ports = [later.port]
    earlier.stop()
    after(40, later)
    clients.end()
    for thread in traffic:
        thread.join(timeout=120)
        assert not thread.is_alive()
    wait_until(lambda: all_ended(store), timeout_s=120)

    counts = Counter(event.correlation_id for event in store.read_all())
    assert dict.fromkeys(clients.accepted, 1) == {key: counts[key] for key in clients.accepted}
    assert {} == {key: counts[key] for key in clients.refused if counts[key]}
    payments = ended_payments(store)
    assert {body["payment"] for body in clients.commands("/request-payment")} == set(payments)
    completed = {each for each, types in payments.items() if "bank.payment_completed" in types}
    confirmed = {body["payment"] for body in clients.commands("/confirm-payment")}
    assert completed
    assert completed <= confirmed < set(payments)
    balances = expected_balances(clients, completed)
    assert balances == {each: store.state(Account, each).value.balance for each in ACCOUNTS}
    wait_until(lambda: table(store_dsn), accept=lambda seen: balances == seen)
    assert clients.retried["UndeclaredError"], "the earlier release met no newer event"
    with Subscriptions(store_dsn) as control:
        assert [[], []] == [control.parked(name) for name in ("balances", "payments")]
        assert [] == control.parked_timers("payments")


def test_a_reader_sees_its_write_and_a_person_is_forgotten(start, store):
    clients = Clients([start(ROOT).port])
    opened(clients)
    done = clients.post("/deposit", account="1", amount="1.50")
    assert done is not None

    read = clients.answer("GET", f"/accounts/1?after={done['token']}")
    forgotten = clients.answer("DELETE", "/owners/owner-1")

    assert (200, {"account": "1", "balance": "21.50"}) == read
    assert (200, True) == forgotten
    first = next(store.read_stream("account-1")).event
    assert Redacted("owner-1") == first.name == first.email
    assert Decimal("21.50") == store.state(Account, "1").value.balance
    assert clients.post("/withdraw", account="1", amount="21.50", note="all of it")
