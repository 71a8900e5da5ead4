"""A view is rebuilt while traffic runs, shown and taken back, again and again, while readers count.

Now and then whoever moves them is killed, and the job has to do the rest. How fresh the stores are
is told for three times: before it, while the version is built, and while readers are moved. The
readers are there in all three, for they cost something themselves.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headwater.demo.errors import RebuildError
from headwater.demo.result import Rebuilt
from headwater.demo.watcher import watchers
from headwater.versions import Versions
from projections.rebuild import Filling
from projections.view import MirrorView

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.demo.freshness import FreshnessMeter
    from headwater.demo.reader import Places
    from headwater.demo.watcher import Watcher
    from headwater.demo.workload import Probe
    from headwater.platform import Platform

SWITCHES: Final = 20
KILLED_EVERY: Final = 5
"""Of so many switches one is given to a process that is killed."""

_SEED: Final = 20
_SHARE: Final = 0.5
_FINISHED_S: Final = 60.0
_KILL_WITHIN_S: Final = 4.0
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
    """

    platform: Platform
    probe: Probe
    column: str
    places: Places
    meter: FreshnessMeter
    say: Callable[[str], None]
    _random: random.Random = field(default_factory=lambda: random.Random(_SEED))  # noqa: S311
    _watchers: dict[str, Watcher] = field(default_factory=dict)
    _watched_since_s: float = 0.0

    def watch(self) -> None:
        """Has readers look at the row from now on."""
        self._watchers = watchers(self.places, self.probe)
        for watcher in self._watchers.values():
            watcher.start()
        self._watched_since_s = time.monotonic()

    def run(self) -> Rebuilt:
        """Rebuilds, compares, shows and takes back; returns what readers saw since `watch`.

        Raises:
            RebuildError: The version was not built, or differs.
            ProjectionError: A step was refused.
        """
        name, versions = self.probe.view, Versions(self.platform)
        declared = self.platform.project.declarations.views[name]
        if not isinstance(declared, MirrorView):
            raise RebuildError(f"view {name} is no mirror")
        wanted = replace(declared, left_out=(*declared.left_out, self.column))
        began = time.monotonic()
        self.say(f"[yellow]rebuild[/]  {name}, without its column {self.column}")
        version = versions.rebuild(name, filling=Filling(_SHARE), definition=wanted)
        built = time.monotonic()
        replayed = version.replayed
        if replayed is None:
            raise RebuildError(f"version {version.number} of view {name} was not filled")
        compared = versions.compare(name)
        if not compared.same:
            raise RebuildError(f"version {version.number} of view {name} differs from the other")
        self.say(
            f"[yellow]held[/]     version {version.number}, {replayed.records:,} changes, after"
            f" {built - began:.1f} s; the same at {compared.at}"
        )
        killed = self._switch(versions, name)
        seen = {store: watcher.stop() for store, watcher in self._watchers.items()}
        ended = time.monotonic()
        self.say(f"[yellow]switched[/] {SWITCHES} times, {killed} of them killed on the way")
        return Rebuilt(
            view=name,
            version=version.number,
            changes=replayed.records,
            built_s=round(built - began, 1),
            explained=dict(compared.explained),
            switches=SWITCHES,
            killed=killed,
            watched=seen,
            before=self.meter.within(self._watched_since_s, began),
            building=self.meter.within(began, built),
            switching=self.meter.within(built, ended),
        )

    def _switch(self, versions: Versions, name: str) -> int:
        """Moves readers to and fro; they see the new version in the end. Returns the kills."""
        killed = 0
        for number in range(1, SWITCHES + 1):
            back = self._shown(versions, name) != 1
            if number % KILLED_EVERY == 0:
                self._killed("rollback" if back else "cutover", name)
                killed += 1
            elif back:
                versions.rollback(name)
            else:
                versions.cutover(name)
            self._finished(versions)
        if self._shown(versions, name) == 1:
            versions.cutover(name)
        return killed

    def _killed(self, verb: str, name: str) -> None:
        """Has a process of its own move readers, and kills it at some moment."""
        config, home = self.platform.config, self.platform.project.settings.home
        words = ("view", verb, name, "--config", str(config), "--home", str(home))
        with subprocess.Popen(
            [sys.executable, "-m", "headwater", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                process.wait(self._random.uniform(0.5, _KILL_WITHIN_S))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)

    @staticmethod
    def _finished(versions: Versions) -> None:
        """Waits until no switch is left halfway: the job ends what somebody else has begun."""
        deadline = time.monotonic() + _FINISHED_S
        while any(version.switching for version in versions.all()):
            if time.monotonic() > deadline:
                raise RebuildError("a switch was not finished", detail=f"{_FINISHED_S:.0f} s")
            time.sleep(_POLL_S)

    @staticmethod
    def _shown(versions: Versions, name: str) -> int:
        every = versions.all()
        return next(v.number for v in every if v.view == name and v.state == "current")
