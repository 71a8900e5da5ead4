"""Rebuilds a view during the traffic, then repeatedly cuts over and rolls back under readers.

The demo kills the rebuild command once, some of the cutovers, and the job during the last ones: the
repeated command, or the job, must complete them. Freshness is measured in three periods: before the
rebuild, during it, and during the cutovers. The time after the kill of the job does not count,
because nothing is written then. The readers run in all periods, because they cost time themselves.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final

from cdc.postgres import session
from foundation.waiting import wait_until
from headwater.demo.changed import without_column
from headwater.demo.chaos import Chaos
from headwater.demo.command import ViewCommand
from headwater.demo.errors import RebuildError
from headwater.demo.result import RebuildResult
from headwater.demo.task import Task
from headwater.demo.watcher import watchers
from headwater.operations.versions import Versions
from projections.definition.views import MirrorView
from projections.errors import VersionBehindError, VersionBusyError
from projections.versions import registry
from projections.versions.version import VersionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.demo.freshness import FreshnessMeter
    from headwater.demo.reader import ViewEndpoints
    from headwater.demo.result import Recovery
    from headwater.demo.watcher import Watcher
    from headwater.demo.workload import Probe
    from headwater.platform.platform import Platform
    from projections.versions.compare import VersionDifference
    from projections.versions.version import FillProgress, ViewVersion

SWITCHES: Final = 20
KILLED_EVERY: Final = 4
"""One of this many switches runs in a process that is killed, before or after the switch."""
_WITHOUT_JOB: Final = 2
"""At least this many of the last switches happen while the job is killed and restarts."""

_SEED: Final = 20
_BUILDS_S: Final = 2.0
"""The rebuild command is killed within this time; it takes longer, because the job must adopt the
version."""
_FINISHED_S: Final = 240.0
_SEEN_S: Final = 120.0
_POLL_S: Final = 0.1


@dataclass(slots=True)
class Rebuilding:
    """One rebuild, and the observations of its readers.

    Attributes:
        platform: The platform.
        probe: The row that the readers poll; its view is rebuilt.
        column: Column that the view's new definition omits.
        places: Addresses of the stores.
        meter: Measures the freshness.
        say: Reports each step.
        traffic_began: Value of `time.monotonic` when traffic began.
        undisturbed_until: Value of `time.monotonic` when the switches without a kill of the job
            ended; later commits wait for the restart of the job.
    """

    platform: Platform
    probe: Probe
    column: str
    places: ViewEndpoints
    meter: FreshnessMeter
    say: Callable[[str], None]
    traffic_began: float
    undisturbed_until: float | None = None
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))  # noqa: S311
    _watchers: dict[str, Watcher] = field(default_factory=dict)
    _watched_since_s: float = 0.0
    _took_s: dict[int, float] = field(default_factory=dict)  # by the version moved from, the last
    _switches: int = 0

    def watch(self) -> None:
        """Starts the readers."""
        self._watchers = watchers(self.places, self.probe)
        for watcher in self._watchers.values():
            watcher.start()
        self._watched_since_s = time.monotonic()

    def run(self) -> RebuildResult:
        """Rebuilds, compares, cuts over and rolls back; returns what readers saw since `watch`.

        Raises:
            RebuildError: The version was not built, or differs.
            ChaosError: The job did not restart.
            ProjectionError: A step was refused.
        """
        name, versions = self.probe.view, Versions(self.platform)
        if not isinstance(self.platform.project.declarations.views[name], MirrorView):
            raise RebuildError(f"view {name} is not a mirror")
        began = time.monotonic()
        self.say(f"[yellow]rebuild[/]  {name}, without its column {self.column}")
        builds_killed = self._build(versions)
        built = time.monotonic()
        version, replayed, compared = self._held(versions)
        self.say(
            f"[yellow]held[/]     version {version.number}, {replayed.records:,} changes, after"
            f" {built - began:.1f} s; the same at {compared.at}"
        )
        killed = self._switch(versions)
        ended = self.undisturbed_until = time.monotonic()
        self._await_seen(ended)
        freshness = [
            self.meter.within(*times)
            for times in ((self._watched_since_s, began), (began, built), (built, ended))
        ]
        job_killed = self._switch_without_job(versions)
        seen = {store: watcher.stop() for store, watcher in self._watchers.items()}
        self.say(f"[yellow]switched[/] {self._switches} times, {killed} who did it killed amid it")
        return RebuildResult(
            view=name,
            version=version.number,
            changes=replayed.records,
            built_s=round(built - began, 1),
            explained=dict(compared.explained),
            builds_killed=builds_killed,
            switches=self._switches,
            killed=killed,
            job_killed=job_killed,
            watched=seen,
            before=freshness[0],
            building=freshness[1],
            switching=freshness[2],
        )

    def _build(self, versions: Versions) -> int:
        """Builds a version with a command that is killed and repeated; returns the kills."""
        project, config, name = self.platform.project, self.platform.config, self.probe.view
        with without_column(project, config, name, self.column) as changed:
            command = ViewCommand("rebuild", name, changed, project.settings.home)
            # a command that is killed while it plans leaves nothing to continue
            after_s = self._random.uniform(0.0, _BUILDS_S)
            killed = command.kill(lambda: len(self._own(versions)) > 1, after_s)
            if killed:
                states = ", ".join(str(each.state) for each in self._own(versions)[1:])
                self.say(f"[yellow]killed[/]   view rebuild; version 2 is {states or 'not there'}")
            try:
                command.run()
            except RebuildError:
                # the job may have adopted the version that the killed command had filled
                if not self._has(versions, VersionState.HELD):
                    raise
        return int(killed)

    def _held(self, versions: Versions) -> tuple[ViewVersion, FillProgress, VersionDifference]:
        name = self.probe.view
        version = next(v for v in self._own(versions) if v.state is VersionState.HELD)
        if version.replayed is None:
            raise RebuildError(f"version {version.number} of view {name} was not filled")
        compared = versions.compare(name)
        if not compared.same:
            raise RebuildError(
                f"version {version.number} of view {name} differs from the active version"
            )
        return version, version.replayed, compared

    def _switch(self, versions: Versions) -> int:
        """Cuts over and rolls back repeatedly; returns how many of the commands were killed."""
        killed = 0
        for number in count(1):
            if self._switches >= SWITCHES - _WITHOUT_JOB:
                return killed
            if number % KILLED_EVERY == 0:
                killed += self._killed(versions)
                continue
            self._move(versions)
        raise AssertionError  # the loop returns

    def _switch_without_job(self, versions: Versions) -> Recovery:
        """Switches while the job is killed; ends with the new version active."""
        after_s = self._random.uniform(0.0, self._took_s.get(self._shown(versions), 0.0))

        def strike() -> Recovery:
            time.sleep(after_s)
            return Chaos(self.platform, "spark", self.say).strike(self.traffic_began)

        striking = Task(strike)
        for _ in range(_WITHOUT_JOB):
            self._move(versions)
        if self._shown(versions) == 1:
            self._move(versions)
        return striking.result()

    def _move(self, versions: Versions) -> None:
        """Switches to the other version; retries while the job is within a batch."""
        name, was, began = self.probe.view, self._shown(versions), time.monotonic()
        while self._shown(versions) == was:
            try:
                if was == 1:
                    versions.cutover(name)
                else:
                    versions.rollback(name)
            except (VersionBehindError, VersionBusyError):
                if time.monotonic() > began + _FINISHED_S:
                    raise
                time.sleep(_POLL_S)
            self._await_finished(versions)
        self._took_s[was] = time.monotonic() - began
        self._switches += 1

    def _killed(self, versions: Versions) -> bool:
        """Switches in a separate process, and kills that at a random moment."""
        was = self._shown(versions)
        verb = "cutover" if was == 1 else "rollback"
        config, home = self.platform.config, self.platform.project.settings.home
        command = ViewCommand(verb, self.probe.view, config, home)
        with self._busy() as busy:
            killed = command.kill(busy, self._random.uniform(0.0, self._took_s.get(was, 0.0)))
        self._await_finished(versions)
        self._switches += self._shown(versions) != was
        return killed

    @contextmanager
    def _busy(self) -> Iterator[Callable[[], bool]]:
        """Yields a function that returns whether an operation holds the lock of the versions."""
        source, name = self.platform.project.source.name, self.probe.view
        with session.connect(self.platform.source_dsn) as connection:

            def busy() -> bool:
                try:
                    with registry.version_lock(connection, source, name, wait_s=0):
                        return False
                except VersionBusyError:
                    return True

            yield busy

    def _await_finished(self, versions: Versions) -> None:
        """Waits until no switch is in progress: the job completes those of killed processes."""

        def finished() -> bool:
            return not any(version.switching for version in versions.all())

        if not wait_until(finished, _FINISHED_S, _POLL_S):
            raise RebuildError("a switch was not finished", detail=f"{_FINISHED_S:.0f} s")

    def _await_seen(self, until_s: float) -> None:
        wait_until(lambda: self.meter.seen_until(until_s), _SEEN_S, _POLL_S)

    def _own(self, versions: Versions) -> list[ViewVersion]:
        return [each for each in versions.all() if each.view == self.probe.view]

    def _has(self, versions: Versions, state: VersionState) -> bool:
        return any(each.state is state for each in self._own(versions))

    def _shown(self, versions: Versions) -> int:
        own = self._own(versions)
        return next(each.number for each in own if each.state is VersionState.CURRENT)
