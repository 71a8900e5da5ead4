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
    """The promises of `eventstore.log` as tests; a subclass gives them a fixture `log`.

    Each test wants a log of its own, empty, and closes nothing but what it opened.
    """
