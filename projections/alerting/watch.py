"""Watching views for alerts, and telling: two loops, each in one process at a time.

A view is looked at whenever another boundary is published, when a row has waited for long enough,
and every few seconds, for a condition may ask for the time. What is to be told is noted before
anybody is told. Whoever does not take a message is left alone for a while, longer each time, and
keeps nobody else waiting.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from cdc.errors import CdcError
from cdc.postgres import session
from projections.alerting import condition, ledger
from projections.alerting.channel import Post
from projections.alerting.episode import Patience, due_at, steps
from projections.errors import AlertError, AlertUndeliveredError, ProjectionError
from projections.published import Published

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from projections.alert import Alert, Channel, Event
    from projections.alerting.condition import Met
    from projections.alerting.ledger import Letter

Connection = psycopg.Connection[Any]

EVERY_S: Final = 5.0
"""How long a condition that asks for the time may be late."""

_LEAST_S: Final = 0.5
"""Between two looks, however often boundaries are published."""
_KEYS_EVERY_S: Final = 30.0
_POLL_S: Final = 0.2
_AGAIN_S: Final = 5.0
_REST_MAX_S: Final = 300.0
_DOUBLED_MAX: Final = 10
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """The alerts of a source, and where everything is.

    Attributes:
        source: Name of the source.
        dsn: The source database.
        tables: Folder of the views' tables.
        bootstrap: Kafka.
        alerts: The alerts.
        keys: Returns the columns of each view's key; asked for again where one is not known.
        secrets: What webhooks are signed with, by name.
    """

    source: str
    dsn: str = field(repr=False)
    tables: Path
    bootstrap: str
    alerts: tuple[Alert, ...]
    keys: Callable[[], Mapping[str, tuple[str, ...]]]
    secrets: Mapping[str, str] = field(repr=False)


def begin(spec: AlertSpec, stop: threading.Event) -> list[threading.Thread]:
    """Begins to look at the views and to tell, each in a thread of its own; returns them."""
    parts = {"alerts": Lookout(spec, stop).run, "alert messages": Messenger(spec, stop).run}
    threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in parts.items()]
    for thread in threads:
        thread.start()
    return threads


class Lookout:
    """Looks at the views and notes who is to be told what.

    Args:
        spec: The alerts.
        stop: Ends it.
    """

    def __init__(self, spec: AlertSpec, stop: threading.Event) -> None:
        self._spec = spec
        self._stop = stop
        self._keys: Mapping[str, tuple[str, ...]] = {}
        self._ask_again_s = 0.0
        self._due: dict[str, datetime] = {}
        self._said: dict[str, str] = {}

    def run(self) -> None:
        """Goes on until it is stopped; nothing that a view or the source does ends it."""
        _run(self._spec, ledger.LOOKING, self._stop, self._look_on)

    def _look_on(self, connection: Connection) -> None:
        ledger.retire(connection, self._spec.source, self._spec.alerts)
        published, seen, looked_s = Published(self._spec.tables, self._spec.source), 0, 0.0
        while not self._stop.wait(_POLL_S):
            since_s = time.monotonic() - looked_s
            latest = published.latest()
            number = 0 if latest is None else latest.number
            moved = number not in {0, seen} and since_s >= _LEAST_S
            if moved or since_s >= EVERY_S or self._overdue(connection):
                seen, looked_s = number or seen, time.monotonic()
                self.look(connection)

    def look(self, connection: Connection) -> None:
        """Looks at all views once; an alert that cannot be asked keeps no other one waiting.

        Why it cannot is logged once, and noted for `headwater alert list` until it can again.

        Raises:
            psycopg.OperationalError: The source does not answer: then none can be looked at.
        """
        for alert in self._spec.alerts:
            try:
                self._look_at(connection, alert)
                why = ""
            except psycopg.OperationalError:
                raise
            except (ProjectionError, CdcError) as error:
                why = f"{error.code}: {error.message}"
            except Exception as error:  # noqa: BLE001  # whatever a view has, others are looked at
                why = f"{AlertError.code}: {type(error).__name__}"
            if why == self._said.get(alert.name):
                continue
            if why:
                _log.warning("an alert is not looked at", alert=alert.name, why=why)
            ledger.unlooked(connection, self._spec.source, alert.name, why)
            self._said[alert.name] = why

    def _look_at(self, connection: Connection, alert: Alert) -> None:
        key = self._key(alert.view)
        if not key:
            return  # its table is not bound yet
        with connection.transaction():
            ledger.look(connection, self._spec.source)
            found = condition.met(self._spec.tables, self._spec.source, alert, key)
            if found is None:
                return
            told = self._note(connection, alert, key, found)
        if told:
            counts = {str(event): rows for event, rows in sorted(told.items())}
            _log.info("rows of an alert", alert=alert.name, **counts)

    def _key(self, view: str) -> tuple[str, ...]:
        """Columns of a view's key; none of one that stands still, asked for now and then."""
        if view not in self._keys and time.monotonic() >= self._ask_again_s:
            self._ask_again_s = time.monotonic() + _KEYS_EVERY_S
            self._keys = self._spec.keys()
        return self._keys.get(view, ())

    def _note(
        self, connection: Connection, alert: Alert, key: tuple[str, ...], found: Met
    ) -> Counter[Event]:
        patience, now = Patience(alert.hold, alert.quiet), ledger.now(connection)
        noting = ledger.Noting(self._spec.source, alert, key, found.position, found.rows, now)
        told: Counter[Event] = Counter()
        known = ledger.known(connection, self._spec.source, alert.name)
        for step in steps(known, found.rows.keys(), now, patience):
            noting.note(connection, step, known.get(step.key))
            told.update(filter(None, [step.told]))
            if step.episode is None:
                known.pop(step.key, None)
            else:
                known[step.key] = step.episode
        due = due_at(known.values(), patience)
        self._due.pop(alert.name, None)
        if due is not None:
            self._due[alert.name] = due
        return told

    def _overdue(self, connection: Connection) -> bool:
        return bool(self._due) and min(self._due.values()) <= ledger.now(connection)


class Messenger:
    """Brings messages to their channels.

    Args:
        spec: The alerts.
        stop: Ends it.
    """

    def __init__(self, spec: AlertSpec, stop: threading.Event) -> None:
        self._spec = spec
        self._stop = stop
        self._channels: dict[tuple[str, str], Channel] = {
            (alert.name, channel.name): channel for alert in spec.alerts for channel in alert.to
        }
        self._resting: dict[str, float] = {}

    def run(self) -> None:
        """Goes on until it is stopped; whatever a channel does ends nothing."""
        with closing(Post(self._spec.bootstrap, self._spec.secrets)) as post:
            _run(
                self._spec,
                ledger.TELLING,
                self._stop,
                lambda connection: self._tell_on(connection, post),
            )

    def _tell_on(self, connection: Connection, post: Post) -> None:
        while not self._stop.wait(_POLL_S):
            while self.tell(connection, post) and not self._stop.is_set():
                pass

    def tell(self, connection: Connection, post: Post) -> int:
        """Brings what can be brought now; returns how many messages were taken."""
        taken = 0
        for letter in ledger.due(connection, self._spec.source, self._left_alone()):
            channel = self._channels.get((letter.alert, letter.channel))
            if channel is None or letter.channel in self._left_alone():
                continue  # not declared here, and forgotten by whoever looks at views
            try:
                post.bring(channel, letter)
            except AlertUndeliveredError as error:
                self._failed(connection, letter, error)
                continue
            ledger.told(connection, letter)
            taken += 1
            if self._stop.is_set():
                break
        return taken

    def _failed(self, connection: Connection, letter: Letter, error: AlertUndeliveredError) -> None:
        doubled = 2.0 ** min(letter.attempts, _DOUBLED_MAX)
        wait_s = min(_REST_MAX_S, doubled) * random.uniform(0.5, 1)  # noqa: S311
        self._resting[letter.channel] = time.monotonic() + wait_s
        why = error.detail or error.code
        ledger.failed(connection, letter, why, timedelta(seconds=wait_s))
        _log.warning("an alert was not taken", channel=letter.channel, why=why)

    def _left_alone(self) -> frozenset[str]:
        now_s = time.monotonic()
        return frozenset(name for name, until_s in self._resting.items() if until_s > now_s)


def _run(
    spec: AlertSpec, part: str, stop: threading.Event, work: Callable[[Connection], None]
) -> None:
    """Does a part of the work while nobody else does, whatever comes between."""
    while not stop.is_set():
        try:
            with session.connect(spec.dsn) as connection:
                if ledger.alone(connection, spec.source, part):
                    work(connection)
        except (ProjectionError, CdcError) as error:
            _log.warning("alerts are looked at later", code=error.code)
        except Exception as error:  # noqa: BLE001  # nobody would notice a thread that has ended
            _log.warning("alerts are looked at later", kind=type(error).__name__)
        stop.wait(_AGAIN_S)
