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

    from projections.alerting.channels import Post
    from projections.alerting.tables import Letter
    from projections.definition.alert import Alert, Channel

Connection = psycopg.Connection[Any]

_POLL_S: Final = 0.2
_REST_MAX_S: Final = 300.0
_DOUBLED_MAX: Final = 10
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Brought:
    """The outcome of a message."""

    letter: Letter
    error: AlertUndeliveredError | None


class Courier:
    """Sends the messages of one channel, in a daemon thread.

    Args:
        channels: The same channel, by the name of each alert that uses it.
        post: Sends a message.
        done: Receives the outcome of each message.
        stop: Stops the thread.
    """

    def __init__(
        self,
        channels: Mapping[str, Channel],
        post: Post,
        done: SimpleQueue[_Brought],
        stop: threading.Event,
    ) -> None:
        self._channels = channels
        self._post = post
        self._done = done
        self._stop = stop
        self._given: SimpleQueue[list[Letter] | None] = SimpleQueue()
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

    def takes(self, letter: Letter) -> bool:
        """Returns whether a message belongs to an alert with this channel."""
        return letter.alert in self._channels

    def give(self, letters: list[Letter]) -> None:
        """Passes messages to it, which it sends in order until one is not accepted."""
        self._left = len(letters)
        if self._thread is None:
            name = f"alerts to {letters[0].channel}"
            self._thread = threading.Thread(target=self._bring_on, name=name, daemon=True)
            self._thread.start()
        self._given.put(letters)

    def took(self, brought: _Brought) -> None:
        """Records that the outcome of a message was stored, and pauses if delivery failed."""
        self._left = 0 if brought.error is not None else self._left - 1

    def rest(self, seconds: float) -> None:
        """Pauses the channel."""
        self._rests_until_s = time.monotonic() + seconds

    def end(self) -> None:
        """Ends the thread after the message in delivery."""
        self._given.put(None)

    def _bring_on(self) -> None:
        while (letters := self._given.get()) is not None:
            for letter in letters:
                if self._stop.is_set():
                    return
                brought = self._bring(letter)
                self._done.put(brought)
                if brought.error is not None:
                    break

    def _bring(self, letter: Letter) -> _Brought:
        try:
            self._post.bring(self._channels[letter.alert], letter)
        except AlertUndeliveredError as error:
            return _Brought(letter, error)
        except BaseException as error:  # noqa: BLE001  # a program of others may even exit
            what, kind = f"{letter.channel} has not taken a message", type(error).__name__
            return _Brought(letter, AlertUndeliveredError(what, detail=kind))
        return _Brought(letter, None)


class Messenger:
    """Passes messages to channel workers, and records their outcomes.

    Args:
        source: Name of the source.
        alerts: Its alerts.
        post: Delivers a message to a channel.
        stop: Stops it.
    """

    def __init__(
        self, source: str, alerts: Iterable[Alert], post: Post, stop: threading.Event
    ) -> None:
        self._source = source
        self._stop = stop
        self._done: SimpleQueue[_Brought] = SimpleQueue()
        channels: dict[str, dict[str, Channel]] = defaultdict(dict)
        for alert in alerts:
            for channel in alert.to:
                channels[channel.name][alert.name] = channel
        self._couriers = {
            name: Courier(by_alert, post, self._done, stop) for name, by_alert in channels.items()
        }

    def tell_on(self, connection: Connection) -> None:
        """Sends messages until stopped."""
        while not self._stop.is_set():
            self.tell(connection)

    def close(self) -> None:
        """Ends the channel workers without waiting for them."""
        for courier in self._couriers.values():
            courier.end()

    def tell(self, connection: Connection) -> int:
        """Passes on the messages that are due; returns how many were accepted meanwhile."""
        idle = [name for name, courier in self._couriers.items() if courier.idle]
        letters: dict[str, list[Letter]] = defaultdict(list)
        for letter in alerting_tables.due(connection, self._source, idle):
            if self._couriers[letter.channel].takes(letter):  # otherwise no longer declared
                letters[letter.channel].append(letter)
        for channel, given in letters.items():
            self._couriers[channel].give(given)
        taken, until_s = 0, time.monotonic() + _POLL_S
        with suppress(Empty):
            while (left_s := until_s - time.monotonic()) > 0:
                brought = self._done.get(timeout=left_s)
                self._note(connection, brought)
                taken += brought.error is None
                if not self.busy:
                    break
        return taken

    @property
    def busy(self) -> bool:
        """Returns whether a message is in delivery."""
        return any(courier.busy for courier in self._couriers.values())

    def _note(self, connection: Connection, brought: _Brought) -> None:
        letter, courier = brought.letter, self._couriers[brought.letter.channel]
        courier.took(brought)
        if brought.error is None:
            alerting_tables.told(connection, letter)
            return
        doubled = 2.0 ** min(letter.attempts, _DOUBLED_MAX)
        wait_s = min(_REST_MAX_S, doubled) * random.uniform(0.5, 1)  # noqa: S311
        courier.rest(wait_s)
        why = brought.error.detail or brought.error.code
        alerting_tables.failed(connection, letter, why, timedelta(seconds=wait_s))
        _log.warning("an alert was not taken", channel=letter.channel, why=why)
