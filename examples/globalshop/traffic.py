"""Realistic writes at a given rate of row changes per second, in a process of their own.

`python -m examples.globalshop.traffic` reads one JSON object from standard input (`dsn`, `rate`,
`seconds`, `seed`, `browsing`), prints its ledger as a JSON line a few times a second, and a last
one with `"done": true`. It stops after `seconds`, on SIGTERM, or when its standard input ends, so
it cannot outlive whoever started it.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from eventstore import Rejected
from eventstore.postgres.log import PostgresEventLog
from examples.globalshop.activity import ACTIVITIES, Shop, add_customer, add_ghost
from examples.globalshop.browsing import Browsing
from examples.globalshop.ledger import Ledger, Notes
from examples.globalshop.order_tables import OrderStore
from examples.globalshop.orders import Order
from examples.globalshop.vocabulary import chance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.globalshop.activity import Activity

_ROLL_BACK_SHARE: Final = 0.04
_INTERLEAVE_SHARE: Final = 0.04
_REPORT_EVERY_S: Final = 0.25


@dataclass(slots=True)
class Traffic:
    """The running traffic.

    It is open loop: the schedule says when the next transaction is due, and one that comes late
    does not move those after it.

    Attributes:
        rate: Row changes per second.
        seconds: How long; for ever if infinite.
        seed: Decides what happens; the clock only decides when.
        activities: What happens and how often.
        stop: Ends the traffic after the transaction in hand.
        ledger: What was committed.
        late_max_s: How far behind its schedule it ever was.
        began: Moment of `time.monotonic` when writing began; None before.
    """

    rate: float
    seconds: float = float("inf")
    seed: int = 11
    activities: Sequence[tuple[int, Activity]] = ACTIVITIES
    stop: threading.Event = field(default_factory=threading.Event)
    ledger: Ledger = field(default_factory=Ledger)
    late_max_s: float = 0.0
    began: float | None = None

    @property
    def elapsed_s(self) -> float:
        """How long it has been writing."""
        return 0.0 if self.began is None else time.monotonic() - self.began

    def run(self, dsn: str) -> Ledger:
        """Writes until the time is over or `stop` is set."""
        rng = random.Random(self.seed)  # noqa: S311  # not a secret
        weights, activities = zip(*self.activities, strict=True)
        with (
            psycopg.connect(dsn) as one,
            psycopg.connect(dsn) as two,
            # commands join the transactions of these, so the store's own pool can be small
            OrderStore(PostgresEventLog(dsn, connections_max=1), deciders=[Order]) as store,
        ):
            shop = Shop.read(one, rng, store)
            one.rollback()
            for connection in (one, two):
                connection.autocommit = True
            started = due = self.began = time.monotonic()
            while due - started < self.seconds and not self.stop.wait(due - time.monotonic()):
                self.late_max_s = max(self.late_max_s, time.monotonic() - due)
                before = self.ledger.rows
                if chance(rng, _INTERLEAVE_SHARE):
                    self._interleave(shop, one, two)
                else:
                    (activity,) = rng.choices(activities, weights)
                    self._transact(shop, one, activity)
                # a transaction without changes still takes its turn
                due += max(1, self.ledger.rows - before) / self.rate
        return self.ledger

    def _transact(self, shop: Shop, connection: psycopg.Connection[Any], activity: Any) -> None:
        notes = Notes()
        undo = chance(shop.rng, _ROLL_BACK_SHARE)
        try:
            with connection.transaction(force_rollback=undo):
                activity(shop, connection, notes)
                if undo:
                    add_ghost(shop, connection)
        except Rejected:
            self.ledger.refused += 1
            return
        if undo:
            self.ledger.roll_back()
        else:
            self.ledger.commit(notes)

    def _interleave(
        self, shop: Shop, one: psycopg.Connection[Any], two: psycopg.Connection[Any]
    ) -> None:
        """Two transactions whose changes alternate in the log; the later one commits first."""
        first, second = Notes(), Notes()
        undo_second = chance(shop.rng, 0.3)
        with one.transaction():
            mine = add_customer(shop, one, first)
            with two.transaction(force_rollback=undo_second):
                prefix = "ghost-" if undo_second else ""
                theirs = add_customer(shop, two, second, prefix=prefix)
                for connection, notes, customer in ((one, first, mine), (two, second, theirs)):
                    connection.execute(
                        "UPDATE customers SET newsletter = NOT newsletter WHERE id = %s",
                        [customer.id],
                    )
                    notes.add("customers", "update")
            add_customer(shop, one, first)
        if undo_second:
            self.ledger.roll_back()
        else:
            self.ledger.commit(second)
        self.ledger.commit(first)


def main() -> None:
    """Runs the traffic that standard input describes."""
    # Ctrl-C reaches the whole process group; the parent decides when the traffic ends
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wish = json.loads(sys.stdin.readline())
    more = Browsing().activities if wish.get("browsing") else ()
    seconds = wish.get("seconds") or float("inf")
    traffic = Traffic(wish["rate"], seconds, wish.get("seed", 11), (*ACTIVITIES, *more))
    signal.signal(signal.SIGTERM, lambda *_: traffic.stop.set())

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        traffic.stop.set()

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    finished = threading.Event()
    reporter = threading.Thread(target=_report, args=(traffic, finished), daemon=True)
    reporter.start()
    try:
        traffic.run(wish["dsn"])
    finally:
        finished.set()
        reporter.join()
    _print(traffic, done=True)


def _report(traffic: Traffic, finished: threading.Event) -> None:
    while not finished.wait(_REPORT_EVERY_S):
        _print(traffic, done=False)


def _print(traffic: Traffic, *, done: bool) -> None:
    ledger = traffic.ledger
    line: dict[str, object] = {
        "done": done,
        "transactions": ledger.transactions,
        "changes": ledger.rows,
        "rolled_back": ledger.rolled_back,
        "seconds": round(traffic.elapsed_s, 3),
    }
    if done:
        line |= ledger.to_json() | {"late_max_ms": round(traffic.late_max_s * 1000, 1)}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
