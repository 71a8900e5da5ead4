"""A store of accounts whose states are saved, and what it saved."""

from __future__ import annotations

from datetime import UTC, datetime

from eventstore import (
    EventStore,
    StreamPart,
)
from eventstore.deciding.fold_identity import fold_name
from eventstore.model.event import SNAPSHOT_TYPE, NewEvent
from eventstore.model.event_id import new_event_id
from eventstore.planning.snapshotting import (
    prefix_data,
    subjects_of,
)
from tests.fix_account import (
    Deposit,
    account,
    types,
)

STREAM = "account-a"


def a_store(log, *, ring=None, **fields):
    return EventStore(log, types=types, keyring=ring, deciders=[account(**fields)])


def decider_in(store):
    return store._planner.decider_for(Deposit("a", 1))


def state_of(store, **when):
    return store.state(decider_in(store), "a", **when)


def saved(store):
    return store.log.snapshot(store.tenant, STREAM, fold_name(decider_in(store)))


def compact(store, through, *, decider=None):
    """What compaction does, without its checks."""
    decider = decider or decider_in(store)
    state = store.state(decider, "a", at_version=through).value
    events = list(store.read_stream(STREAM, StreamPart(through=through, archived=True)))
    subjects = subjects_of(store.codec, [found.event for found in events])
    data = prefix_data(store.codec, decider, state, subjects, (store.tenant, STREAM))
    store.log._replace_prefix(
        store.tenant,
        STREAM,
        through,
        NewEvent(SNAPSHOT_TYPE, data, new_event_id(), datetime.now(UTC)),
    )


def reasons(logs):
    return [entry["reason"] for entry in logs if entry["event"] == "aggregate snapshot ignored"]
