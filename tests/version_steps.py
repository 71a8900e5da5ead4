"""Steps of a version's life in tests: it is built, compared, and shown, each waited for."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from projections import rebuild, switch, version_difference, view_versions
from projections.errors import VersionBehindError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from projections.spec import JobSpec
    from projections.version_difference import VersionDifference
    from projections.view import View
    from projections.view_versions import ViewVersion


@contextmanager
def connected(spec: JobSpec) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(spec.source_dsn, autocommit=True) as connection:
        yield connection


def filled(connection: psycopg.Connection[Any], spec: JobSpec, view: View) -> ViewVersion:
    planned = rebuild.plan_rebuild(connection, spec, view, "archive")
    version = rebuild.begin(connection, spec, view, planned, 0)
    plan = rebuild.bind(connection, spec, version)
    rebuild.prepare(spec, plan)
    rebuild.fill(connection, spec, version, plan, rebuild.Filling())
    rebuild.join(connection, spec, version)
    return version


def built(connection: psycopg.Connection[Any], spec: JobSpec, view: View) -> ViewVersion:
    with view_versions.alone(connection, spec.source, view.name):
        version = filled(connection, spec, view)
        deadline = time.monotonic() + 120
        return rebuild.await_held(
            connection,
            spec,
            version,
            stopped=lambda: time.monotonic() > deadline,
            running=lambda: True,
        )


def compared(
    connection: Any, spec: JobSpec, *given: Any, still: bool = False, deadline_s: float = 60
) -> VersionDifference:
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            return version_difference.compare_versions(connection, spec, *given, still=still)
        except VersionBehindError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def switched(connection: Any, spec: JobSpec, target: ViewVersion) -> None:
    def done() -> bool:
        try:
            switch.switch(connection, spec, [target])
        except VersionBehindError:
            return False
        return True

    awaited(done)


def awaited(reached: Callable[[], bool], deadline_s: float = 60) -> None:
    deadline = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.1)
