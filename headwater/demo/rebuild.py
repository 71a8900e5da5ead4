"""A view is rebuilt while traffic runs, shown and taken back, again and again, while readers count.

The rebuild is killed once, some cutovers are killed, and the job is killed during the last ones:
the repeated command, or the job, must complete them. Freshness is measured in three periods: before
the rebuild, during it, and during the cutovers; not for the time after the job was killed, in which
nothing is written. The readers are there all the while, for they cost something themselves.
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
"""Of so many switches one is given to a process that is killed, before it is made or after."""
_WITHOUT_JOB: Final = 2
"""So many of them at least, the last, are made while the job is killed and comes back."""

_SEED: Final = 20
_BUILDS_S: Final = 2.0
"""Within this the command that builds is killed; it takes longer, for the job has to join it."""
_FINISHED_S: Final = 240.0
_SEEN_S: Final = 120.0
_POLL_S: Final = 0.1


@dataclass(slots=True)
class Rebuilding:
    """One rebuild, and what is seen of it.

    Attributes:
        platform: Where.
        probe: The row that is read; its view is rebuilt.
        column: Column that the view's new definition leaves out.
        places: Where the stores are.
        meter: Measures freshness meanwhile.
        say: Told of each step.
        traffic_began: Moment of `time.monotonic` when traffic began.
        undisturbed_until: The same, of when the job was killed; later commits waited for it.
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
        """Has readers look at the row from now on."""
        self._watchers = watchers(self.places, self.probe)
        for watcher in self._watchers.values():
            watcher.start()
        self._watched_since_s = time.monotonic()

    def run(self) -> RebuildResult:
        """Rebuilds, compares, shows and takes back; returns what readers saw since `watch`.

        Raises:
            RebuildError: The version was not built, or differs.
            ChaosError: The job did not come back.
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
        """Has a version built by a command that is killed, and given again; returns the kills."""
        project, config, name = self.platform.project, self.platform.config, self.probe.view
        with without_column(project, config, name, self.column) as changed:
            command = ViewCommand("rebuild", name, changed, project.settings.home)
            with self._busy() as busy:
                killed = command.kill(busy, self._random.uniform(0.0, _BUILDS_S))
            if killed:
                states = ", ".join(str(each.state) for each in self._own(versions)[1:])
                self.say(f"[yellow]killed[/]   view rebuild; version 2 is {states or 'not there'}")
            try:
                command.run()
            except RebuildError:
                # the job may have come to hold what the killed one had filled
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
        """Moves readers to and fro; returns how many of those who did were killed amid it."""
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
        """Moves readers, amid which the job is killed; they see the new version in the end."""
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
        """Moves readers to the other version; retries while the job has only half a batch."""
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
        """Has a process of its own move readers, and kills it at some moment of that."""
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
        """The lock that shows whether an operation uses the view's versions."""
        source, name = self.platform.project.source.name, self.probe.view
        with session.connect(self.platform.source_dsn) as connection:

            def busy() -> bool:
                try:
                    with registry.alone(connection, source, name, wait_s=0):
                        return False
                except VersionBusyError:
                    return True

            yield busy

    def _await_finished(self, versions: Versions) -> None:
        """Waits until no switch is left halfway: the job ends what another process has begun."""

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
