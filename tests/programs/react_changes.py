"""Runs a reactor of changes that posts each one and dispatches a command, until it is killed.

Arguments: Kafka's address, source, DSN, URL of the receiver.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cdc.consumer import GroupStart
from eventstore.postgres.log import PostgresEventLog
from eventstore.process import Dispatch
from eventstore.reactor import HttpPost, Reactor
from eventstore.subscription import RetryPolicy
from projections.reacting.change_reactor import ChangeReactorRunner, reactor_changes
from tests.fix_reactor import SendLetter, store_on

if TYPE_CHECKING:
    from cdc.consumer import Change

kafka, source, dsn, url = sys.argv[1:]


def react(change: Change) -> list[Any]:
    """One effect on the outside, and one command."""
    assert change.key is not None
    assert change.after is not None
    order, number = str(change.key["id"]), int(str(change.after["number"]))
    post = HttpPost(url=url, body={"order": order, "number": number}, timeout_s=5)
    return [post, Dispatch(SendLetter(order, number))]


reactor = Reactor(
    name="letters", react=react, retry=RetryPolicy(wait_initial_s=0.05, wait_max_s=0.2)
)
with reactor_changes(
    kafka,
    reactor,
    source=source,
    tables=["public.orders"],
    dsn=dsn,
    start=GroupStart.BEGINNING,
    session_timeout_s=6.0,
) as changes:
    ChangeReactorRunner(changes, reactor, store_on(PostgresEventLog(dsn))).run()
