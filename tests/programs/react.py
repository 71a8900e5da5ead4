"""Runs a reactor that posts each order and dispatches a command, until it is killed.

Arguments: DSN, URL of the receiver, partitions.
"""

from __future__ import annotations

import sys

from eventstore.postgres.log import PostgresEventLog
from eventstore.reactor import Reactor
from eventstore.reactor.runner import ReactorRunner
from eventstore.subscription import RetryPolicy, Start
from tests.fix_reactor import ORDERS, posting, store_on

dsn, url, partitions = sys.argv[1:]
reactor = Reactor(
    name="letters",
    react=posting(url, commands=True),
    query=ORDERS,
    start=Start.BEGINNING,
    partitions=int(partitions),
    batch_size=3,
    retry=RetryPolicy(wait_initial_s=0.05, wait_max_s=0.2),
)
ReactorRunner(dsn, reactor, store_on(PostgresEventLog(dsn))).run()
