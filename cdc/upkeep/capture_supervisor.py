"""Supervises one running capture; its only remedy is a restart."""

from __future__ import annotations

import contextlib
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import structlog
from psycopg import Error

from cdc.broker.errors import BrokerError
from cdc.connect.errors import ConnectorRefusedError, ConnectUnavailableError
from cdc.connect.rest import ConnectRest
from cdc.connect.supervision import Watch
from cdc.continuity import Guard
from cdc.postgres import publication, session
from cdc.postgres.errors import PostgresError, PublicationDriftError
from cdc.upkeep import capture_sample, reconcile
from cdc.upkeep.flow import CaptureSample, stall_limit_s
from cdc.upkeep.stall import StallWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg import Connection

    from cdc.capture import CaptureSpec
    from cdc.upkeep.difference import Difference

DRIFT_EVERY_S: Final = 30.0
_WORKER_S: Final = 5.0
_log = structlog.get_logger(__name__)


class CaptureSupervisor:
    """Restarts failed and stalled connectors, with growing pauses; logs drift.

    Args:
        spec: The capture.
        clock: A monotonic clock, seconds.
    """

    def __init__(self, spec: CaptureSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self._spec = spec
        self._clock = clock
        self._rest = ConnectRest(spec.connect_url, retry_s=0.0, timeout_s=_WORKER_S)
        self._connection: Connection[Any] | None = None
        self._watch = Watch(self._rest, spec.connector, clock)
        limit_s = stall_limit_s(spec.heartbeat_interval_ms)
        self._stall = StallWatch(
            spec.connector, self._sample, self._restart, limit_s=limit_s, clock=clock
        )
        self._drift: tuple[Difference, ...] = ()
        self._drift_due_at = 0.0
        self._guard = Guard(spec)

    @property
    def restarts(self) -> int:
        """Returns the restarts after failures so far, and after stalls since the last movement."""
        return self._watch.restarts + self._stall.restarts

    def look(self) -> None:
        """Checks once; a server that does not answer now is checked again next time.

        Raises:
            ConnectorFailedError: The connector failed in a way that a restart cannot repair.
            CaptureStalledError: Nothing moves, and restarts have not helped.
            PublicationDriftError: The publication is gone: nothing can be captured any more.
        """
        if self._guarded():
            return  # the connector is stopped until an operator repairs the loss
        try:
            self._watch.look()
        except ConnectUnavailableError as error:  # its server is being restarted
            _log.warning("connect does not answer", detail=error.detail)
        try:
            self._stall.look()
            if self._clock() >= self._drift_due_at:
                self._look_for_drift()
        except PublicationDriftError:
            raise
        except (Error, PostgresError) as error:
            _log.warning("the source does not answer", kind=type(error).__name__)
            self._disconnect()

    def close(self) -> None:
        """Closes its connections."""
        self._disconnect()
        self._rest.close()

    def _guarded(self) -> bool:
        """Permits streaming if the slot is intact; returns whether changes are missing."""
        try:
            return self._guard.look(self._connected(), self._rest) is not None
        except (BrokerError, ConnectUnavailableError):
            return False  # another component reports it
        except (Error, PostgresError):
            self._disconnect()
            return False

    def _sample(self, arrivals: bool) -> CaptureSample:
        return capture_sample.look(self._connected(), self._rest, self._spec, arrivals=arrivals)

    def _restart(self) -> None:
        try:
            self._rest.restart(self._spec.connector, only_failed=False)
        except (ConnectUnavailableError, ConnectorRefusedError) as error:
            _log.warning("connector cannot be restarted", detail=error.detail)

    def _look_for_drift(self) -> None:
        self._drift_due_at = self._clock() + DRIFT_EVERY_S
        connection = self._connected()
        if publication.find(connection, self._spec.publication) is None:
            raise PublicationDriftError(
                f"publication {self._spec.publication} was dropped: changes are missing",
                hint="see headwater source status; headwater plan names the repair",
            )
        try:
            found = tuple(reconcile.drift(connection, self._rest, self._spec))
        except (BrokerError, ConnectUnavailableError):
            return  # another component reports it
        if found != self._drift:
            for difference in found:
                if difference not in self._drift:
                    _log.warning("capture is not as it was applied", difference=str(difference))
            if not found:
                _log.info("capture is as it was applied again")
        self._drift = found

    def _connected(self) -> Connection[Any]:
        if self._connection is None:
            self._connection = session.connect(self._spec.dsn)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Error):
                self._connection.close()
            self._connection = None


def supervise(
    spec: CaptureSpec, every_s: float, *, begun: Callable[[], None] = lambda: None
) -> None:
    """Supervises a capture without end.

    Args:
        spec: The capture.
        every_s: Pause between two checks, seconds.
        begun: Called once the supervision has begun.

    Raises:
        CdcError: See `CaptureSupervisor.look`.
    """
    with closing(CaptureSupervisor(spec)) as supervisor:
        begun()
        while True:
            supervisor.look()
            time.sleep(every_s)
