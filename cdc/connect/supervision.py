"""Supervises a connector: Connect never restarts a failed task by itself."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from cdc.connect.errors import ConnectorFailedError, ConnectorNotRunningError
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.connect.rest import ConnectorState, ConnectRest, TaskState

# Failures that a restart does not repair.
_PERMANENT: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (
        re.compile(r"authentication failed|SQLState: 28|invalid_authorization", re.IGNORECASE),
        "check user and password in the DSN, then headwater up",
    ),
    (
        re.compile(r"publication .* does not exist|Publication autocreation is disabled"),
        "headwater source repair --yes: its publication is gone",
    ),
    (
        re.compile(
            r"can no longer (access|get changes from) replication slot"
            r"|slot .*has been invalidated|wal_status.*lost"
            r"|no longer available on the server|offset is behind|[Ss]lot.*recreated"
            r"|requested WAL segment .* has already been removed",
        ),
        "headwater source repair --yes: capture restarts, and every table is read again",
    ),
    (
        re.compile(r"slot is ahead|slot .*ahead of|OffsetMismatch|offset.*mismatch", re.IGNORECASE),
        "another client moved the slot; run headwater source repair --yes",
    ),
    (
        re.compile(r"RecordTooLargeException"),
        "raise max.message.bytes of the topic, or leave the column out",
    ),
    (
        re.compile(r"instead of text: this version of Debezium"),
        "put Debezium 3.7 on the workers: with another one values would not arrive exactly",
    ),
)

_CLASS: Final = re.compile(r"^(Caused by: )?([\w$]+\.)+[\w$]+(: )?")
_OFFSETS: Final = re.compile(r"PostgresOffsetContext \[.*\](?=,|$)")
_POLL_S: Final = 0.05
_PAUSE_FIRST_S: Final = 1.0
_STALE_S: Final = 5.0
_PAUSE_MAX_S: Final = 30.0
_ABSENCE_MAX_S: Final = 60.0


def wait_running(rest: ConnectRest, name: str, timeout_s: float) -> ConnectorState:
    """Waits until a connector and its task run; restarts it while that can help.

    Raises:
        ConnectorFailedError: It failed in a way that a restart cannot repair.
        ConnectorNotRunningError: It did not run in time; the detail has its last error.
    """
    began = time.monotonic()
    old = _failed(rest.state(name))
    if old:
        rest.restart(name)  # whatever the failure: its cause may have been repaired since
    restart_at, pause_s = began + _PAUSE_FIRST_S, _PAUSE_FIRST_S
    while True:
        state = rest.state(name)
        if state is not None and state.running:
            return state
        now = time.monotonic()
        failed = _failed(state)
        if failed == old and now < began + _STALE_S:
            failed = ()  # Connect repeats the old state until the restart begins
        for part in failed:
            _refuse_permanent(name, part)
        if now > began + timeout_s:
            raise ConnectorNotRunningError(
                f"connector {name} did not run within {timeout_s:.0f} s",
                detail=_last_words(state),
                hint="headwater logs connect",
            )
        if failed and now >= restart_at:
            rest.restart(name)
            restart_at, pause_s = now + pause_s, min(pause_s * 2, _PAUSE_MAX_S)
        time.sleep(_POLL_S)


def wait_stopped(rest: ConnectRest, name: str, timeout_s: float) -> None:
    """Waits until a stopped connector has no tasks.

    Raises:
        ConnectorNotRunningError: It did not stop in time.
    """
    state = None
    for _ in looks(timeout_s, _POLL_S):
        state = rest.state(name)
        if state is None or (state.connector.state == "STOPPED" and not state.tasks):
            return
    raise ConnectorNotRunningError(
        f"connector {name} did not stop within {timeout_s:.0f} s",
        detail=_last_words(state) if state else None,
        hint="headwater logs connect",
    )


class Watch:
    """Supervises a connector; the pause between restarts grows.

    Args:
        rest: The worker.
        name: The connector.
        clock: A monotonic clock, seconds.
    """

    def __init__(
        self, rest: ConnectRest, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rest = rest
        self._name = name
        self._clock = clock
        self._pause_s = _PAUSE_FIRST_S
        self._not_before = 0.0
        self._absent_since: float | None = None
        self.restarts = 0

    def look(self) -> ConnectorState | None:
        """Checks once; restarts a failed connector unless the last restart was just now.

        Returns:
            The state; None while the worker does not know the connector, which is also the case
            while the worker reads its configuration after a start.

        Raises:
            ConnectorFailedError: It stays unknown, or failed in a way that a restart cannot repair.
            ConnectUnavailableError: The worker does not answer.
        """
        now = self._clock()
        state = self._rest.state(self._name)
        if state is None:
            self._refuse_lasting_absence(now)
            return None
        self._absent_since = None
        if state.failed and now >= self._not_before:
            for part in state.failed:
                _refuse_permanent(self._name, part)
            self._rest.restart(self._name)
            self.restarts += 1
            self._not_before = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, _PAUSE_MAX_S)
        elif not state.failed and now > self._not_before + _PAUSE_MAX_S:
            self._pause_s = _PAUSE_FIRST_S
        return state

    def _refuse_lasting_absence(self, now: float) -> None:
        if self._absent_since is None:
            self._absent_since = now
        if now - self._absent_since >= _ABSENCE_MAX_S:
            raise ConnectorFailedError(
                f"connector {self._name} does not exist", hint="headwater up registers it again"
            )


def cause(trace: str | None) -> str:
    """Returns the last cause of a Java stack trace, without class names."""
    lines = (trace or "").splitlines()
    causes = [line for line in lines if line.startswith("Caused by: ")]
    last = _CLASS.sub("", (causes or lines[:1] or [""])[-1])
    return _OFFSETS.sub("its stored offset", last).strip()[:400]


def _refuse_permanent(name: str, part: TaskState) -> None:
    for pattern, hint in _PERMANENT:
        if pattern.search(part.trace or ""):
            raise ConnectorFailedError(
                f"connector {name} failed, and a restart cannot repair it",
                detail=cause(part.trace),
                hint=hint,
            )


def _failed(state: ConnectorState | None) -> tuple[TaskState, ...]:
    return state.failed if state is not None else ()


def _last_words(state: ConnectorState | None) -> str:
    if state is None:
        return "the worker does not know it"
    states = ", ".join(part.state for part in state.parts)
    return "; ".join([states, *(cause(part.trace) for part in state.failed)])
