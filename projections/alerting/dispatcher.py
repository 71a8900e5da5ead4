"""Dispatch: passes messages to channel workers, one for each channel, and records the outcomes.

A channel that is slow or hangs delays no other channel. A channel that does not accept a message is
paused, longer each time.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from projections.alerting import tables as alerting_tables
from projections.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from projections.alerting.channels import ChannelSender
    from projections.alerting.tables import QueuedMessage
    from projections.definition.alert import Alert, Channel

Connection = psycopg.Connection[Any]

_POLL_S: Final = 0.2
_REST_MAX_S: Final = 300.0
_DOUBLED_MAX: Final = 10
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _SendOutcome:
    """The outcome of a message."""

    message: QueuedMessage
    error: AlertUndeliveredError | None


class ChannelWorker:
    """Sends the messages of one channel, in a daemon thread.

    Args:
        channels: The same channel, by the name of each alert that uses it.
        sender: Sends a message.
        done: Receives the outcome of each message.
        stop: Stops the thread.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        sender: ChannelSender,
        done: SimpleQueue[_SendOutcome],
        stop: threading.Event,
    ) -> None:
        self._channels = channels
        self._sender = sender
        self._done = done
        self._stop = stop
        self._submitted: SimpleQueue[list[QueuedMessage] | None] = SimpleQueue()
        self._left = 0
        self._rests_until_s = 0.0
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Returns whether a message is being sent, or its outcome is not recorded yet."""
        return self._left > 0

    @property
    def idle(self) -> bool:
        """Returns whether it accepts messages now."""
        return not self.busy and self._rests_until_s <= time.monotonic()

    def serves(self, message: QueuedMessage) -> bool:
        """Returns whether a message belongs to an alert with this channel."""
        return message.alert in self._channels

    def submit(self, messages: list[QueuedMessage]) -> None:
        """Passes messages to it, which it sends in order until one is not accepted."""
        self._left = len(messages)
        if self._thread is None:
            name = f"alerts to {messages[0].channel}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._submitted.put(messages)

    def settle(self, outcome: _SendOutcome) -> None:
        """Records that the outcome of a message was stored, and pauses if delivery failed."""
        self._left = 0 if outcome.error is not None else self._left - 1

    def rest(self, seconds: float) -> None:
        """Pauses the channel."""
        self._rests_until_s = time.monotonic() + seconds

    def end(self) -> None:
        """Ends the thread after the message in delivery."""
        self._submitted.put(None)

    def _run(self) -> None:
        while (messages := self._submitted.get()) is not None:
            for message in messages:
                if self._stop.is_set():
                    return
                outcome = self._send(message)
                self._done.put(outcome)
                if outcome.error is not None:
                    break

    def _send(self, message: QueuedMessage) -> _SendOutcome:
        try:
            self._sender.send(self._channels[message.alert], message)
        except AlertUndeliveredError as error:
            return _SendOutcome(message, error)
        except BaseException as error:  # noqa: BLE001  # a handler of the project may even exit
            failure, kind = f"{message.channel} did not accept a message", type(error).__name__
            return _SendOutcome(message, AlertUndeliveredError(failure, detail=kind))
        return _SendOutcome(message, None)


class MessageDispatcher:
    """Passes messages to channel workers, and records their outcomes.

    Args:
        source: Name of the source.
        alerts: Its alerts.
        sender: Delivers a message to a channel.
        stop: Stops it.
    """

    def __init__(
        self, source: str, alerts: Iterable[Alert], sender: ChannelSender, stop: threading.Event
    ) -> None:
        self._source = source
        self._stop = stop
        self._done: SimpleQueue[_SendOutcome] = SimpleQueue()
        channels: dict[str, dict[str, Channel]] = defaultdict(dict)
        for alert in alerts:
            for channel in alert.to:
                channels[channel.name][alert.name] = channel
        self._workers = {
            name: ChannelWorker(by_alert, sender, self._done, stop)
            for name, by_alert in channels.items()
        }

    def run(self, connection: Connection) -> None:
        """Sends messages until stopped."""
        while not self._stop.is_set():
            self.dispatch(connection)

    def close(self) -> None:
        """Ends the channel workers without waiting for them."""
        for worker in self._workers.values():
            worker.end()

    def dispatch(self, connection: Connection) -> int:
        """Passes on the messages that are due; returns how many were accepted meanwhile."""
        idle = [name for name, worker in self._workers.items() if worker.idle]
        messages: dict[str, list[QueuedMessage]] = defaultdict(list)
        for message in alerting_tables.due(connection, self._source, idle):
            if self._workers[message.channel].serves(message):  # otherwise no longer declared
                messages[message.channel].append(message)
        for channel, given in messages.items():
            self._workers[channel].submit(given)
        taken, until_s = 0, time.monotonic() + _POLL_S
        with suppress(Empty):
            while (left_s := until_s - time.monotonic()) > 0:
                outcome = self._done.get(timeout=left_s)
                self._record(connection, outcome)
                taken += outcome.error is None
                if not self.busy:
                    break
        return taken

    @property
    def busy(self) -> bool:
        """Returns whether a message is in delivery."""
        return any(worker.busy for worker in self._workers.values())

    def _record(self, connection: Connection, outcome: _SendOutcome) -> None:
        message, worker = outcome.message, self._workers[outcome.message.channel]
        worker.settle(outcome)
        if outcome.error is None:
            alerting_tables.delete_accepted(connection, message)
            return
        doubled = 2.0 ** min(message.attempts, _DOUBLED_MAX)
        wait_s = min(_REST_MAX_S, doubled) * random.uniform(0.5, 1)  # noqa: S311
        worker.rest(wait_s)
        why = outcome.error.detail or outcome.error.code
        alerting_tables.record_failure(connection, message, why, timedelta(seconds=wait_s))
        _log.warning("a channel did not accept a message", channel=message.channel, why=why)
