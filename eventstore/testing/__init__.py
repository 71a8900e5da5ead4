"""The promises of an event log as tests, for those who write another back end.

    class TestMyLog(EventLogContract):
        @pytest.fixture
        def log(self) -> Iterator[EventLog]:
            log = MyEventLog(...)  # empty, and nobody else's
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
from eventstore.testing.contract import EventLogContract  # noqa: E402
from eventstore.testing.sample import an_event, append_to  # noqa: E402

__all__ = [
    "AsyncEventLogContract",
    "BlockingLog",
    "EventLogContract",
    "an_event",
    "append_to",
]
