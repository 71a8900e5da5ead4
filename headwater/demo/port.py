"""What the demo needs of the platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc.change_event import ChangeEvent
    from cdc.lsn import Lsn
    from headwater.project.project import Project
    from headwater.runtime import Endpoints, RuntimeStatus, StatusEvent


class ComparedView(Protocol):
    """One view in one store, compared with its source."""

    @property
    def view(self) -> str:
        """Its name."""

    @property
    def store(self) -> str:
        """Where."""

    @property
    def rows(self) -> int:
        """Rows of the source."""

    @property
    def missing(self) -> int:
        """Rows that only the source has."""

    @property
    def extra(self) -> int:
        """Rows that only the store has."""

    @property
    def different(self) -> int:
        """Rows that differ."""

    @property
    def moving(self) -> int:
        """Rows that changed whenever they were looked at."""

    @property
    def quarantined(self) -> int:
        """Rows that are wrong as a record of them waits."""

    @property
    def verified_through(self) -> Lsn | None:
        """Through which position the view equals its source."""

    @property
    def applied_through(self) -> Lsn | None:
        """How far the view had come."""


class Comparing(Protocol):
    """Views that can be compared with their source."""

    def verify(self) -> Sequence[ComparedView]:
        """Compares every view in every store with the source."""


class Stack(Protocol):
    """Servers, capture and job of one project; `headwater.platform.platform.Platform` is one."""

    project: Project

    @property
    def endpoints(self) -> Endpoints:
        """Where the servers answer, once they were started."""

    @property
    def source_dsn(self) -> str:
        """How the source is reached."""

    def start(self, on_event: Callable[[StatusEvent], None]) -> Endpoints:
        """Starts servers and job; returns when every server answers."""

    def ensure_database(self) -> None:
        """Creates the source's database in the local Postgres."""

    def apply(self) -> list[str]:
        """Makes the source be captured."""

    def first_change(self, deadline_s: float) -> ChangeEvent | None:
        """Returns the first captured change."""

    def await_job(self, deadline_s: float) -> None:
        """Waits until the job keeps the views."""

    def current_lsn(self) -> Lsn:
        """Returns the source's end of log."""

    def await_applied(self, lsn: Lsn, deadline_s: float) -> None:
        """Waits until every view has applied everything up to a position."""

    @property
    def views(self) -> Comparing:
        """Its views."""

    def status(self) -> RuntimeStatus | None:
        """Returns what runs."""

    def stop(self) -> bool:
        """Stops everything in order."""
