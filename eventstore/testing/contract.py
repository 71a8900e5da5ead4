"""EventLogContract: all that an event log promises."""

from __future__ import annotations

from eventstore.testing.append import AppendContract
from eventstore.testing.concurrency import ConcurrencyContract
from eventstore.testing.condition import ConditionContract
from eventstore.testing.log_reading import LogReadingContract
from eventstore.testing.refusal import RefusalContract
from eventstore.testing.repetition import EventIdContract, KeyContract
from eventstore.testing.snapshot import SnapshotContract
from eventstore.testing.stream_reading import StreamReadingContract
from eventstore.testing.tenant import TenantContract


class EventLogContract(
    AppendContract,
    KeyContract,
    EventIdContract,
    StreamReadingContract,
    LogReadingContract,
    ConditionContract,
    TenantContract,
    SnapshotContract,
    RefusalContract,
    ConcurrencyContract,
):
    """The contract of `eventstore.log` as tests; a subclass provides the fixture `log`.

    Each test needs an empty log, and closes only what it opened.
    """
