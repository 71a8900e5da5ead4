"""The processes: workers that are forked after the store was made, and one for each runner.

A child that dies is forked again. Workers may use a pooler (`BANK_DSN`); runners connect directly
(`BANK_DIRECT_DSN`). `BANK_KEYS` is the file of the master keys.
"""

import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from http.server import ThreadingHTTPServer
from pathlib import Path

from eventstore import EventStore, UnknownPolicy
from eventstore.master_key import read_master_keys
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.process.runner import ProcessRunner
from eventstore.subscription import Subscription
from eventstore.subscription.runner import SubscriptionRunner
from examples.bank.api import Bank, BankHandler
from examples.bank.balances import Balances
from examples.bank.domain import Account, Payment
from examples.bank.payments import payments

WORKERS = 3
SIGNALS = {signal.SIGTERM, signal.SIGCHLD}
DSN = os.environ["BANK_DSN"]
DIRECT = os.environ.get("BANK_DIRECT_DSN", DSN)
CONFIRM_WITHIN = timedelta(seconds=float(os.environ.get("BANK_CONFIRM_S", "86400")))
KEYS = read_master_keys(Path(os.environ["BANK_KEYS"]))


def store_on(dsn: str) -> tuple[EventStore, PostgresKeyRing]:
    """Returns the store; events of a newer release wait for that release's runner."""
    ring = PostgresKeyRing(dsn, KEYS)
    log = PostgresEventLog(dsn)
    store = EventStore(log, deciders=[Account, Payment], keyring=ring, unknown=UnknownPolicy.PARK)
    return store, ring


def keep_balances() -> None:
    """Runs the table of balances."""
    store, _ = store_on(DIRECT)
    SubscriptionRunner(
        DIRECT, Subscription.of(Balances(), unknown=store.unknown), store=store
    ).run()


def make_payments() -> None:
    """Runs the payments."""
    store, _ = store_on(DIRECT)
    run(ProcessRunner(DIRECT, payments(CONFIRM_WITHIN), store))


def run(runner: SubscriptionRunner) -> None:
    """Runs until SIGTERM, which lets the batch under way commit."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: runner.stop())
    runner.run()


def serve(port: int) -> None:
    """Forks the children, and again each that ends, until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # before a thread is started
    BankHandler.bank = bank = Bank(DSN, *store_on(DSN))
    next(bank.store.read_all(), None)  # so that a connection is open at the fork
    server = ThreadingHTTPServer(("127.0.0.1", port), BankHandler)
    server.socket.setblocking(False)  # the workers share it; each accepts what it can get
    works = (keep_balances, make_payments, *[server.serve_forever] * WORKERS)
    children: dict[int, Callable[[], None]] = {forked(work): work for work in works}
    while signal.sigwait(SIGNALS) == signal.SIGCHLD:
        for pid in [each for each in children if os.waitpid(each, os.WNOHANG)[0]]:
            work = children.pop(pid)
            children[forked(work)] = work
    for pid in children:
        os.kill(pid, signal.SIGTERM)
    bank.close()


def forked(work: Callable[[], None]) -> int:
    """Returns the process id of a child that does the work."""
    pid = os.fork()
    if pid:
        return pid
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        work()
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
