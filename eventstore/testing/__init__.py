"""Test tools for users of the event store, and the contract tests of event logs.

`process_scenario` and `projection_scenario` test a process manager and a view as `scenario` tests a
decider: given, when, then. `ProcessSimulation` runs a process manager in memory, by a `MovedClock`.
For those who write another back end, the promises of a log:

    class TestMyLog(EventLogContract):
        @pytest.fixture
        def log(self) -> Iterator[EventLog]:
            log = MyEventLog(...)  # empty, and no one else's
            yield log
            log.close()

It needs pytest. `AsyncEventLogContract` is the same for an `AsyncEventLog`, by a fixture
`async_log`.
"""

from __future__ import annotations

from pytest import register_assert_rewrite as _register  # noqa: PT013  # not one of our names

# Before they are imported, so that a failed assertion shows its values.
_register(
    *(
        f"eventstore.testing.{name}"
        for name in (
            "append",
            "asynchrony",
            "concurrency",
            "condition",
            "refusal",
            "repetition",
            "log_reading",
            "snapshot",
            "stream_reading",
            "tenant",
        )
    )
)

from eventstore.testing.asynchrony import AsyncEventLogContract, BlockingLog  # noqa: E402
from eventstore.testing.clock import MovedClock  # noqa: E402
from eventstore.testing.contract import EventLogContract  # noqa: E402
from eventstore.testing.process import process_scenario  # noqa: E402
from eventstore.testing.projection import projection_scenario  # noqa: E402
from eventstore.testing.sample import an_event, append_to  # noqa: E402
from eventstore.testing.simulation import ProcessSimulation  # noqa: E402

__all__ = [
    "AsyncEventLogContract",
    "BlockingLog",
    "EventLogContract",
    "MovedClock",
    "ProcessSimulation",
    "an_event",
    "append_to",
    "process_scenario",
    "projection_scenario",
]
