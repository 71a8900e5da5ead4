"""Evaluates alerts and sends their messages: two loops, each in one process at a time.

A view is evaluated after each new boundary, when a row's waiting time is over, and every few
seconds, because a condition may depend on the time; the longer an evaluation takes, the longer is
the pause after it. Messages are stored before they are sent.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog

from cdc.errors import CdcError
from cdc.postgres import session
from projections.alerting import evaluator
from projections.alerting import tables as alerting_tables
from projections.alerting.channels import ChannelSender
from projections.alerting.dispatcher import MessageDispatcher
from projections.alerting.episode import NotificationDelay, due_at, steps
from projections.definition.alert import Event
from projections.errors import AlertConditionError, AlertError, ProjectionError
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from foundation.advisory_lock import AdvisoryLock
    from projections.alerting.evaluator import MatchingRows
    from projections.definition.alert import Alert

Connection = psycopg.Connection[Any]

EVERY_S: Final = 5.0
"""Longest delay of a condition that depends on the time."""

_LEAST_S: Final = 0.5
"""Shortest time between two evaluations, however often boundaries are published."""
_REST: Final = 4
"""Pause after an evaluation, as a multiple of its duration."""
OPENED_MAX: Final = 10_000
"""Most rows reported by one evaluation: more at once help no reader."""
_KEYS_EVERY_S: Final = 30.0
_POLL_S: Final = 0.2
_AGAIN_S: Final = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AlertSpec:
    """The alerts of a source, with the addresses that they need.

    Attributes:
        source: Name of the source.
        dsn: The source database.
        tables: Folder of the views' tables.
        bootstrap: Kafka.
        alerts: The alerts.
        keys: Returns the columns of each view's key; called again for an unknown view.
        secrets: Secrets for signing webhooks, by name.
    """

    source: str
    dsn: str = field(repr=False)
    tables: Path
    bootstrap: str
    alerts: tuple[Alert, ...]
    keys: Callable[[], Mapping[str, tuple[str, ...]]]
    secrets: Mapping[str, str] = field(repr=False)


def begin(spec: AlertSpec, stop: threading.Event) -> list[threading.Thread]:
    """Starts the threads that evaluate alerts and send messages; returns them."""
    parts = {"alerts": _evaluate, "alert messages": _dispatch}
    threads = [
        threading.Thread(target=run, args=(spec, stop), name=name, daemon=True)
        for name, run in parts.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def _evaluate(spec: AlertSpec, stop: threading.Event) -> None:
    _run(spec, alerting_tables.EVALUATION_LOCK, stop, AlertWatcher(spec, stop).run)


def _dispatch(spec: AlertSpec, stop: threading.Event) -> None:
    with (
        closing(ChannelSender(spec.bootstrap, spec.secrets)) as sender,
        closing(MessageDispatcher(spec.source, spec.alerts, sender, stop)) as dispatcher,
    ):
        _run(spec, alerting_tables.DISPATCH_LOCK, stop, dispatcher.run)


class AlertWatcher:
    """Evaluates the views and stores the messages to send.

    Args:
        spec: The alerts.
        stop: Stops the thread.
    """

    def __init__(self, spec: AlertSpec, stop: threading.Event) -> None:
        self._spec = spec
        self._stop = stop
        self._keys: Mapping[str, tuple[str, ...]] = {}
        self._uncertain: set[str] = set()
        self._ask_again_s = 0.0
        self._due: dict[str, datetime] = {}
        self._logged: dict[str, str] = {}

    def run(self, connection: Connection) -> None:
        """Evaluates until it is stopped."""
        alerting_tables.retire(connection, self._spec.source, self._spec.alerts)
        published, seen = Published(self._spec.tables, self._spec.source), 0
        looked_s, rested_s = -EVERY_S, 0.0
        while not self._stop.wait(_POLL_S):
            now_s = time.monotonic()
            if now_s < rested_s:
                continue
            latest = published.latest()
            number = 0 if latest is None else latest.number
            moved = number not in {0, seen}
            if moved or now_s - looked_s >= EVERY_S or self._overdue(connection):
                seen, looked_s = number or seen, now_s
                self.evaluate(connection)
                done_s = time.monotonic()
                rested_s = max(now_s + _LEAST_S, done_s + _REST * (done_s - now_s))

    def evaluate(self, connection: Connection) -> None:
        """Evaluates all views once; an alert that cannot be evaluated delays no other.

        The cause is logged once, and recorded for `headwater alert list` until the alert can be
        evaluated again.

        Raises:
            psycopg.OperationalError: The source does not answer, so no alert can be evaluated.
        """
        for alert in self._spec.alerts:
            try:
                self._evaluate_alert(connection, alert)
                why = ""
            except psycopg.OperationalError:
                raise
            except (ProjectionError, CdcError) as error:
                self._uncertain.add(alert.view)  # its key may have changed
                why = f"{error.code}: {error.message}"
            except Exception as error:  # noqa: BLE001  # an error of one view must not delay others
                why = f"{AlertError.code}: {type(error).__name__}"
            if why == self._logged.get(alert.name):
                continue
            if why:
                _log.warning("an alert cannot be evaluated", alert=alert.name, why=why)
            alerting_tables.set_paused(connection, self._spec.source, alert.name, why)
            self._logged[alert.name] = why

    def _evaluate_alert(self, connection: Connection, alert: Alert) -> None:
        self._due.pop(alert.name, None)  # nothing is due for an alert that cannot be evaluated
        key = self._key(alert.view)
        if not key:
            return  # the view is not bound yet
        with connection.transaction():
            alerting_tables.begin_evaluation(connection, self._spec.source)
            now = alerting_tables.now(connection)
            matching = evaluator.matching_rows(
                self._spec.tables, self._spec.source, alert, key, now
            )
            if matching is None:
                return
            counts = self._record(connection, alert, key, matching, now)
        if counts:
            by_event = {str(event): rows for event, rows in sorted(counts.items())}
            _log.info("rows of an alert", alert=alert.name, **by_event)

    def _key(self, view: str) -> tuple[str, ...]:
        """Returns the columns of a view's key; empty while the view is paused."""
        unsure = view not in self._keys or view in self._uncertain
        if unsure and time.monotonic() >= self._ask_again_s:
            self._ask_again_s = time.monotonic() + _KEYS_EVERY_S
            self._keys = self._spec.keys()
            self._uncertain.clear()
        return self._keys.get(view, ())

    def _record(
        self,
        connection: Connection,
        alert: Alert,
        key: tuple[str, ...],
        matching: MatchingRows,
        now: datetime,
    ) -> Counter[Event]:
        delay = NotificationDelay(alert.hold, alert.quiet)
        known = alerting_tables.known(connection, self._spec.source, alert.name)
        taken = list(steps(known, matching.until, now, delay))
        counts = Counter(step.event for step in taken if step.event is not None)
        if counts[Event.OPENED] > OPENED_MAX:
            raise AlertConditionError(
                f"alert {alert.name} would report more than {OPENED_MAX:,} rows at once",
                hint='use a narrower condition, or recent=Recent("at", "7 days")',
            )
        rows = matching.rows({step.key for step in taken})
        noting = alerting_tables.AlertRecorder(
            self._spec.source, alert, key, matching.position, rows, now
        )
        for step in taken:
            noting.note(connection, step, known.get(step.key))
            if step.episode is None:
                known.pop(step.key, None)
            else:
                known[step.key] = step.episode
        if (due := due_at(known.values(), delay)) is not None:
            self._due[alert.name] = due
        return counts

    def _overdue(self, connection: Connection) -> bool:
        return bool(self._due) and min(self._due.values()) <= alerting_tables.now(connection)


def _run(
    spec: AlertSpec, part: AdvisoryLock, stop: threading.Event, work: Callable[[Connection], None]
) -> None:
    """Does a part of the work while no other process does it; restarts it after errors."""
    while not stop.is_set():
        try:
            with session.connect(spec.dsn) as connection:
                if alerting_tables.try_reserve(connection, spec.source, part):
                    work(connection)
        except (ProjectionError, CdcError) as error:
            _log.warning("alerts are evaluated later", code=error.code)
        except Exception as error:  # noqa: BLE001  # otherwise the thread would end silently
            _log.warning("alerts are evaluated later", kind=type(error).__name__)
        stop.wait(_AGAIN_S)
