"""Samples the sending and the receiving side of a capture."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.errors import BrokerUnreachableError
from cdc.broker.reading import arrival
from cdc.capture import HEARTBEAT_TABLE
from cdc.connect.errors import ConnectUnavailableError
from cdc.postgres import delivery
from cdc.upkeep.flow import CaptureSample, Flow, judge, settled, stall_limit_s

if TYPE_CHECKING:
    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectorState, ConnectRest

WINDOW_S: Final = 3.0
"""How long to wait for movement before a capture counts as stalled."""

_POLL_S: Final = 0.5


def look(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec, *, arrivals: bool = True
) -> CaptureSample:
    """Takes one sample; changes nothing.

    Args:
        connection: To the source database.
        rest: The Connect worker, with a short timeout.
        spec: The capture.
        arrivals: Whether to sample Kafka, too, which costs the most.
    """
    answers, worker = _worker(rest, spec.connector)
    sent = delivery.look(connection, spec.slot)
    return CaptureSample(worker, answers, sent, _arrived(spec) if arrivals else None)


def observe(
    connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec
) -> tuple[Flow, CaptureSample]:
    """Returns the state of a capture, and the last sample.

    Waits up to `WINDOW_S` if one sample does not determine the state.
    """
    limit_s = stall_limit_s(spec.heartbeat_interval_ms)
    first = last = look(connection, rest, spec)
    deadline = time.monotonic() + WINDOW_S
    while not settled(last, limit_s) and time.monotonic() < deadline:
        if last is not first and last.moved_since(first):
            break
        time.sleep(_POLL_S)
        # a worker that did not answer the first time is not queried again
        last = look(connection, rest, spec) if first.answers else _again(connection, spec)
    return judge(first, last, limit_s), last


def _again(connection: Connection[Any], spec: CaptureSpec) -> CaptureSample:
    return CaptureSample(None, False, delivery.look(connection, spec.slot), _arrived(spec))


def _worker(rest: ConnectRest, connector: str) -> tuple[bool, ConnectorState | None]:
    try:
        return True, rest.state(connector)
    except ConnectUnavailableError:
        return False, None


def _arrived(spec: CaptureSpec) -> arrival.ArrivalSample | None:
    topics = (*spec.table_topics.values(), spec.transaction_topic)
    try:
        return arrival.look(spec.kafka_bootstrap, topics, spec.table_topics[HEARTBEAT_TABLE])
    except BrokerUnreachableError:
        return None
