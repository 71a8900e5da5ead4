"""Kafka Connect's REST interface, as far as one connector needs it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import orjson

from cdc.connect import converter
from cdc.connect.errors import ConnectorRefusedError, ConnectUnavailableError
from cdc.lsn import Lsn
from foundation.waiting import looks

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT_S: Final = 30.0  # a PUT validates the configuration against the database
_RETRY_S: Final = 20.0
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
_CLIENT_ERROR: Final = 400
_NOT_FOUND: Final = 404
_REBALANCE: Final = 409
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of a connector or of one of its tasks, as a worker reports it.

    Attributes:
        task: Number of the task; None for the connector itself.
        state: `RUNNING`, `FAILED`, `PAUSED`, `UNASSIGNED`, `RESTARTING` or `STOPPED`.
        trace: Java's stack trace of a failure.
    """

    task: int | None
    state: str
    trace: str | None = None


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """State of a connector and of its tasks."""

    connector: TaskState
    tasks: tuple[TaskState, ...]

    @property
    def running(self) -> bool:
        """Returns whether the connector and all of its tasks run, at least one."""
        return bool(self.tasks) and all(part.state == "RUNNING" for part in self.parts)

    @property
    def parts(self) -> tuple[TaskState, ...]:
        """The connector and its tasks."""
        return (self.connector, *self.tasks)

    @property
    def failed(self) -> tuple[TaskState, ...]:
        """Returns the failed parts."""
        return tuple(part for part in self.parts if part.state == "FAILED")


class ConnectRest:
    """A client of a Connect worker; retries busy responses for a while, others raise typed errors.

    Args:
        url: Base URL without a trailing slash.
        retry_s: How long to repeat a request while the worker rebalances or starts, seconds.
        timeout_s: Longest wait for a response, seconds.
    """

    def __init__(
        self, url: str, *, retry_s: float = _RETRY_S, timeout_s: float = _TIMEOUT_S
    ) -> None:
        import urllib3  # noqa: PLC0415  # the event store works where it is not installed

        self._url = url.rstrip("/")
        self._retry_s = retry_s
        self._pool = urllib3.PoolManager(timeout=urllib3.Timeout(timeout_s), retries=False)

    def put_config(self, name: str, config: Mapping[str, str]) -> None:
        """Registers a connector or changes its configuration; the worker validates it first.

        Raises:
            ConverterMissingError: The worker does not have our converter.
            ConnectorRefusedError: The worker does not take the configuration.
        """
        try:
            self._call("PUT", f"/connectors/{quote(name)}/config", config)
        except ConnectorRefusedError as error:
            converter.require([error.detail or ""])
            raise

    def complaints(self, plugin: str, config: Mapping[str, str]) -> list[str]:
        """Returns the worker's validation errors of a configuration, without registering it."""
        path = f"/connector-plugins/{quote(plugin)}/config/validate"
        found = self._call("PUT", path, {**config, "connector.class": plugin})
        return [error for part in found["configs"] for error in part["value"]["errors"]]

    def config(self, name: str) -> dict[str, str] | None:
        """Returns a connector's configuration with secrets; None if it does not exist."""
        found = self._call("GET", f"/connectors/{quote(name)}/config", missing_is_none=True)
        return None if found is None else dict(found)

    def state(self, name: str) -> ConnectorState | None:
        """Returns the state of a connector; None if it does not exist."""
        found = self._call("GET", f"/connectors/{quote(name)}/status", missing_is_none=True)
        if found is None:
            return None
        connector = found["connector"]
        return ConnectorState(
            TaskState(None, connector["state"], connector.get("trace")),
            tuple(TaskState(t["id"], t["state"], t.get("trace")) for t in found["tasks"]),
        )

    def restart(self, name: str, *, only_failed: bool = True) -> None:
        """Restarts a connector and its tasks."""
        path = f"/connectors/{quote(name)}/restart?includeTasks=true"
        self._call("POST", f"{path}&onlyFailed={str(only_failed).lower()}")

    def pause(self, name: str) -> None:
        """Pauses a connector; the slot retains the log meanwhile."""
        self._call("PUT", f"/connectors/{quote(name)}/pause")

    def resume(self, name: str) -> None:
        """Resumes a connector after `pause`."""
        self._call("PUT", f"/connectors/{quote(name)}/resume")

    def stop(self, name: str) -> bool:
        """Stops a connector's tasks; its offsets can then be read and deleted.

        Returns whether there is one. The state of one that was just removed is reported for a
        moment longer (state and configuration are topics of their own), so `state` does not say it.
        """
        path = f"/connectors/{quote(name)}/stop"
        return self._call("PUT", path, missing_is_none=True) is not None

    def wait_stopped(self, name: str) -> None:
        """Waits until a stopped connector has ended its tasks.

        Raises:
            ConnectUnavailableError: It has not ended them within the retry time.
        """
        for _ in looks(self._retry_s, _PAUSE_FIRST_S):
            state = self.state(name)
            if state is None or (state.connector.state == "STOPPED" and not state.tasks):
                return
        raise ConnectUnavailableError(f"connector {name} does not stop")

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """Returns a connector's stored offsets in its own format."""
        found = self._call("GET", f"/connectors/{quote(name)}/offsets", missing_is_none=True)
        return list(found["offsets"]) if found else []

    def captured_through(self, name: str) -> Lsn | None:
        """Returns the position through which Kafka has a connector's changes; None without one.

        Within a transaction, `lsn_proc` is the position of its last row. That can precede the
        commit of an earlier transaction, through which everything has arrived.
        """
        for stored in self.offsets(name):
            offset = stored.get("offset") or {}
            places = [offset[part] for part in ("lsn_proc", "lsn_commit") if offset.get(part)]
            if places:
                return Lsn(max(map(int, places)))
        return None

    def delete_offsets(self, name: str) -> None:
        """Deletes the offsets of a stopped connector."""
        self._call("DELETE", f"/connectors/{quote(name)}/offsets")

    def delete(self, name: str) -> bool:
        """Removes a connector; returns whether it existed."""
        return self._call("DELETE", f"/connectors/{quote(name)}", missing_is_none=True) is not None

    def close(self) -> None:
        """Closes its connections."""
        self._pool.clear()

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, str] | None = None,
        *,
        missing_is_none: bool = False,
    ) -> Any:
        deadline = time.monotonic() + self._retry_s
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                return self._asked(method, path, body, missing_is_none=missing_is_none)
            except ConnectUnavailableError:
                if time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _asked(
        self, method: str, path: str, body: Mapping[str, str] | None, *, missing_is_none: bool
    ) -> Any:
        found, there = self._once(method, path, body, missing_is_none=missing_is_none)
        if not there and self._started():
            # once more: the worker may have started between the two answers
            found, _ = self._once(method, path, body, missing_is_none=missing_is_none)
        return found

    def _once(
        self, method: str, path: str, body: Mapping[str, str] | None, *, missing_is_none: bool
    ) -> tuple[Any, bool]:
        """Returns the response, and whether the requested object exists."""
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        content = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"}
        try:
            answer = self._pool.request(method, self._url + path, body=content, headers=headers)
        except HTTPError as error:
            raise ConnectUnavailableError(
                "Kafka Connect does not answer", detail=f"{self._url}: {type(error).__name__}"
            ) from None
        if answer.status == _NOT_FOUND and missing_is_none:
            return None, False
        if answer.status == _REBALANCE or answer.status >= _SERVER_ERROR:
            raise ConnectUnavailableError(
                "Kafka Connect is busy or faulty",
                detail=f"{method} {path}: status {answer.status}, {_message(answer.data)}",
                hint="headwater logs connect",
            )
        if answer.status >= _CLIENT_ERROR:
            raise ConnectorRefusedError(
                "Kafka Connect refuses a request",
                detail=f"{method} {path}: status {answer.status}, {_message(answer.data)}",
            )
        return orjson.loads(answer.data) if answer.data else {}, True

    def _started(self) -> bool:
        """Returns whether a worker reports that it has started; workers before Kafka 3.9 never do.

        Before that, it answers 404 for every connector, and at first for every path. That must not
        be mistaken for a missing connector (KIP-1017).

        Raises:
            ConnectUnavailableError: It is starting.
        """
        if not self._once("GET", "/", None, missing_is_none=True)[1]:
            raise ConnectUnavailableError("Kafka Connect is starting", detail=self._url)
        return self._once("GET", "/health", None, missing_is_none=True)[1]


def _message(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["message"])[:1_000]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")
