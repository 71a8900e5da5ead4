"""Steps of a version's life in tests: it is built, compared, and shown, each waited for."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from projections.errors import RebuildStoppedError, VersionBehindError
from projections.versions import compare, cutover, rebuild, registry
from projections.versions.fill import FillOptions
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.versions.compare import VersionDifference
    from projections.versions.version import ViewVersion


PERIOD_S = 0.03
_COMPARED_S = 400.0


class Reader(threading.Thread):
    """Reads the watched row from a store, more than twenty times a second."""

    def __init__(self, read: Callable[[], int | None]) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.seen = 0
        self.wrong: list[str] = []
        self._read = read

    def run(self) -> None:
        before = 0
        while not self.stopped.wait(PERIOD_S):
            try:
                number = self._read()
            except Exception as error:  # noqa: BLE001  # whatever a reader would be told
                self.wrong.append(repr(error))
                continue
            if number is None:
                self.wrong.append("no row")
            elif number < before:
                self.wrong.append(f"{number} after {before}")
            else:
                before, self.seen = number, self.seen + 1


@contextmanager
def connected(config: JobConfig) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(config.source_dsn, autocommit=True) as connection:
        yield connection


def filled(connection: psycopg.Connection[Any], spec: JobSpec, view: View) -> ViewVersion:
    planned = rebuild.plan_rebuild(connection, spec, view, "archive")
    version = rebuild.begin(connection, spec.config, view, planned, 0)
    rebuild.build(connection, spec, version, planned, FillOptions())
    return version


def built(connection: psycopg.Connection[Any], spec: JobSpec, view: View) -> ViewVersion:
    with registry.version_lock(connection, spec.config.source, view.name):
        version = filled(connection, spec, view)
        deadline = time.monotonic() + 180
        try:
            return rebuild.await_held(
                connection,
                spec.config,
                version,
                stopped=lambda: time.monotonic() > deadline,
                running=lambda: True,
            )
        except RebuildStoppedError as error:
            for line in _seen(connection, spec.config):
                error.add_note(line)
            raise


def _seen(connection: psycopg.Connection[Any], config: JobConfig) -> list[str]:
    """What somebody else sees of versions, and who waits for whom."""
    with connected(config) as other:
        versions = other.execute("SELECT place, state FROM headwater.view_versions").fetchall()
        sessions = other.execute(
            "SELECT pid, state, wait_event_type, pg_blocking_pids(pid), xact_start, left(query, 90)"
            " FROM pg_stat_activity WHERE datname = current_database()"
        ).fetchall()
    own = f"own session {connection.info.backend_pid}: {connection.info.transaction_status.name}"
    return [own, *map(str, versions), *map(str, sessions)]


def compared(
    connection: Any, config: JobConfig, *given: Any, still: bool = False
) -> VersionDifference:
    def difference() -> VersionDifference | VersionBehindError:
        try:
            return compare.compare_versions(connection, config, *given, still=still)
        except VersionBehindError as error:
            return error

    found = wait_until(
        difference,
        accept=lambda answer: not isinstance(answer, VersionBehindError),
        timeout_s=_COMPARED_S,
    )
    if isinstance(found, VersionBehindError):  # only the type needs that
        raise found
    return found


def switched(connection: Any, config: JobConfig, target: ViewVersion) -> None:
    def done() -> bool:
        try:
            cutover.switch(connection, config, target)
        except VersionBehindError:
            return False
        return True

    wait_until(done, timeout_s=LONG_S)
