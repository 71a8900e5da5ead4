"""The event log in memory keeps the contract, and what it adds to it."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from eventstore.errors import CompactionError, WrongExpectedVersionError
from eventstore.log import LogPart, StreamPart
from eventstore.memory import AsyncMemoryEventLog, MemoryEventLog, SentMessage
from eventstore.model.event import SNAPSHOT_TYPE, IntegrationEvent
from eventstore.model.expected_version import NO_STREAM
from eventstore.model.query import tagged
from eventstore.testing import AsyncEventLogContract, EventLogContract, an_event, append_to

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.model.event import StoredEvent


class TestMemoryEventLog(EventLogContract):
    @pytest.fixture
    def log(self) -> Iterator[MemoryEventLog]:
        """A log whose threads take turns as often as they can."""
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        log = MemoryEventLog()
        yield log
        log.close()
        sys.setswitchinterval(usual)


class TestAsyncMemoryEventLog(AsyncEventLogContract):
    @pytest.fixture
    def async_log(self) -> AsyncMemoryEventLog:
        return AsyncMemoryEventLog()


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


def test_messages_are_sent_if_and_only_if_their_append_is_stored(log):
    message = IntegrationEvent("order-placed", b"{}", "order-1", an_event().event_id)
    log.append(append_to("order-1", outbox=(message,), correlation_id="f1", tenant="acme"))
    with pytest.raises(WrongExpectedVersionError):
        log.append(
            append_to("order-1", outbox=(message,), tenant="acme", expected_version=NO_STREAM)
        )

    assert (SentMessage("acme", message, "f1"),) == log.sent


def test_a_clock_that_is_set_back_makes_no_hole_in_a_stream_as_of_an_instant():
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    hours = iter([0, 2, 1, 3])
    log = MemoryEventLog(clock=lambda: noon + timedelta(hours=next(hours)))
    for _ in range(4):
        log.append(append_to("order-1"))

    assert [1, 1, 3, 4] == [
        len(
            list(log.read_stream("default", "order-1", StreamPart(as_of=noon + timedelta(hours=h))))
        )
        for h in range(4)
    ]


def test_what_the_writer_changes_afterwards_stays_as_it_was_appended(log):
    data, metadata = bytearray(b'{"a":1}'), bytearray(b"[]")
    log.append(append_to("order-1", an_event(data=data, metadata=metadata)))
    data[:] = metadata[:] = b"damaged"
    (event,) = log.read_stream("default", "order-1")

    assert (b'{"a":1}', b"[]") == (event.data, event.metadata)


def test_blocking_and_asyncio_code_can_share_one_log(log):
    shared = AsyncMemoryEventLog(log)
    log.append(append_to("order-1"))

    async def write_and_read() -> list[StoredEvent]:
        await shared.append(append_to("order-1"))
        return [event async for event in shared.read_log(None)]

    assert asyncio.run(write_and_read()) == list(log.read_log(None))
    assert 2 == log.high_water_mark()


@pytest.fixture
def compacted(log):
    """Six events of which the first four are folded into one, and their originals."""
    for number in range(6):
        log.append(append_to("order-1", an_event(data=b"%d" % number, tags=(f"n:{number}",))))
    originals = list(log.read_stream("default", "order-1"))
    log._replace_prefix("default", "order-1", 4, an_event(SNAPSHOT_TYPE, b'"folded"'))
    return log, originals


def test_a_compacted_stream_begins_with_what_stands_for_its_prefix(compacted):
    log, originals = compacted
    folded, *rest = log.read_stream("default", "order-1")

    assert (SNAPSHOT_TYPE, 4, b'"folded"') == (folded.type, folded.stream_position, folded.data)
    assert originals[4:] == rest
    assert [6, 5, 4] == [
        event.stream_position
        for event in log.read_stream("default", "order-1", StreamPart(backwards=True))
    ]
    assert rest == list(log.read_stream("default", "order-1", StreamPart(after=4)))


def test_the_log_the_archive_and_the_past_still_have_the_original_events(compacted):
    log, originals = compacted
    instant = originals[2].recorded_at
    past = [event for event in originals if event.recorded_at <= instant]

    assert originals == list(log.read_log(None))
    assert originals[1:2] == list(log.read_log("default", LogPart(tagged("n:1"))))
    assert originals == list(log.read_stream("default", "order-1", StreamPart(archived=True)))
    assert past == list(log.read_stream("default", "order-1", StreamPart(as_of=instant)))
    assert originals[:1] == log.read_boundary("default", tagged("n:0")).events


def test_a_compacted_stream_goes_on_where_it_was(compacted):
    log, _ = compacted

    assert 6 == log.stream_version("default", "order-1")
    assert 7 == log.append(append_to("order-1", expected_version=6)).version
    log._replace_prefix("default", "order-1", 7, an_event(SNAPSHOT_TYPE, b'"all"'))
    assert [b'"all"'] == [event.data for event in log.read_stream("default", "order-1")]


@pytest.mark.parametrize("through", [0, 3, 4, 7])
def test_a_stream_is_not_compacted_less_far_than_it_is_nor_beyond_its_end(compacted, through):
    log, _ = compacted

    with pytest.raises(CompactionError, match="order-1"):
        log._replace_prefix("default", "order-1", through, an_event(SNAPSHOT_TYPE, b"1"))
