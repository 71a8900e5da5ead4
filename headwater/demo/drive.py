"""The second half of the demo: runs and measures traffic until every view has caught up."""

from __future__ import annotations

import contextlib
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from foundation.waiting import looks, wait_until
from headwater.demo.chaos import Chaos
from headwater.demo.errors import ChaosError, RebuildError, TrafficError
from headwater.demo.freshness import FreshnessMeter
from headwater.demo.memory import everything_mib
from headwater.demo.screen import TrafficProgress
from headwater.demo.task import Task
from headwater.demo.traffic import Written

if TYPE_CHECKING:
    from headwater.demo.options import DemoOptions
    from headwater.demo.reader import ViewEndpoints
    from headwater.demo.rebuild import Rebuilding
    from headwater.demo.result import Freshness, RebuildResult, Recovery
    from headwater.demo.screen import Screen
    from headwater.demo.traffic import Traffic
    from headwater.demo.workload import Workload
    from headwater.platform.platform import Platform

_APPLIED_S: Final = 300.0
_SEEN_S: Final = 15.0
_POLL_S: Final = 0.2
_MEMORY_EVERY_S: Final = 3.0
_GRACE_S: Final = 20.0
_STRIKE_AT: Final = 0.3
_STRIKES_WITHIN: Final = 0.6
"""Fractions of the traffic's duration: the first kill, and the period over which kills are spread.
"""


@dataclass(slots=True)
class TrafficMeasurements:
    """Measurements during the traffic; the fields are those of `DemoResult`."""

    written: Written = field(default_factory=Written)
    seconds: float = 0.0
    freshness: dict[str, Freshness] = field(default_factory=dict)
    memory_mib: int = 0
    recoveries: tuple[Recovery, ...] = ()
    rebuilt: RebuildResult | None = None
    position: str = ""
    caught_up_s: float = 0.0


class TrafficRun:
    """Runs traffic and measures the views.

    Args:
        stack: The platform.
        workload: The workload that writes.
        options: Rate, duration, and components to kill.
        places: Addresses of the stores.
        screen: Shows the progress.
    """

    def __init__(
        self,
        stack: Platform,
        workload: Workload,
        options: DemoOptions,
        places: ViewEndpoints,
        screen: Screen,
    ) -> None:
        self._stack = stack
        self._workload = workload
        self._options = options
        self._places = places
        self._screen = screen
        self._found = TrafficMeasurements()
        self._memory: Task[int] | None = None
        self._striking: list[Task[Recovery]] = []
        self._rebuilding: Rebuilding | None = None
        self._rebuilt: Task[RebuildResult] | None = None

    def run(self) -> TrafficMeasurements:
        """Returns when every view contains all commits.

        Raises:
            TrafficError: The traffic failed.
            ChaosError: A killed component did not restart.
            RebuildError: The rebuild of a view failed.
            UnhealthyError: Views did not catch up.
        """
        found, dsn, probe = self._found, self._stack.source_dsn, self._workload.probe
        meter = FreshnessMeter(dsn, probe, self._places.probe_readers(probe))
        with ExitStack() as cleanup:
            traffic = self._workload.start_traffic(dsn, self._options.rate, self._options.seconds)
            cleanup.callback(_stop_quietly, traffic)
            cleanup.callback(meter.stop)
            began = time.monotonic()
            meter.start()
            self._watch(traffic, meter, began)
            found.written = traffic.stop()
            found.seconds = found.written.seconds
            self._end_rebuild(meter, began)
            meter.stop_probing()
            self._catch_up(meter)
            found.freshness = self._fresh(meter, began)
            self._weigh(wait=True)
        self._screen.say(
            f"{found.written.changes:,} row changes committed; views had them all "
            f"{found.caught_up_s:.1f} s later"
        )
        return found

    def _fresh(self, meter: FreshnessMeter, began: float) -> dict[str, Freshness]:
        """Returns the freshness, without the period after the rebuild killed the job."""
        every = meter.stop()
        until = None if self._rebuilding is None else self._rebuilding.undisturbed_until
        return every if until is None else meter.within(began, until)

    def _rebuild(self, meter: FreshnessMeter, began: float, *, begin: bool) -> None:
        """Starts the readers when the row is visible, and the rebuild when `begin` is set."""
        column = self._workload.spare_column
        if not self._options.rebuild or column is None or not meter.sighted():
            return
        if self._rebuilding is None:
            from headwater.demo.rebuild import Rebuilding  # noqa: PLC0415  # loads every driver

            probe, stack = self._workload.probe, self._stack
            reporting = meter, self._screen.say, began
            self._rebuilding = Rebuilding(stack, probe, column, self._places, *reporting)
            self._rebuilding.watch()
        if begin and self._rebuilt is None:
            self._rebuilt = Task(self._rebuilding.run)

    def _end_rebuild(self, meter: FreshnessMeter, began: float) -> None:
        """Waits for the rebuild, and starts it if the traffic ended before."""
        if not self._options.rebuild or self._workload.spare_column is None:
            return
        with self._screen.waiting("cutting over and rolling back under readers"):
            for _ in looks(_APPLIED_S, _POLL_S):
                if self._rebuilt is not None:
                    break
                self._rebuild(meter, began, begin=True)
            if self._rebuilt is None:
                raise RebuildError("no store has the watched row")
            self._found.rebuilt = self._rebuilt.result()

    def _watch(self, traffic: Traffic, meter: FreshnessMeter, began: float) -> None:
        seconds, memory_due = self._options.seconds, 0.0
        with self._screen.traffic():
            # the traffic ends by itself; the grace period allows for its start
            while (
                traffic.running() and (elapsed_s := time.monotonic() - began) < seconds + _GRACE_S
            ):
                written = traffic.written()
                self._rebuild(meter, began, begin=written.seconds > _STRIKE_AT * seconds)
                self._strike(written.seconds / seconds, began)
                if elapsed_s >= memory_due:
                    memory_due = elapsed_s + _MEMORY_EVERY_S
                    self._weigh()
                self._screen.update(
                    TrafficProgress(
                        written.seconds,
                        seconds,
                        written,
                        meter.so_far(),
                        self._found.memory_mib,
                        self._recovering(),
                    )
                )
                time.sleep(_POLL_S)
        self._weigh(wait=True)
        if spared := self._options.chaos[len(self._striking) :]:
            raise ChaosError(f"traffic ended before {spared[0]} could be killed")

    def _strike(self, passed: float, began: float) -> None:
        """Kills the next component when its time has come, without waiting for earlier ones."""
        victims, struck = self._options.chaos, len(self._striking)
        if struck < len(victims) and passed > (
            _STRIKE_AT + _STRIKES_WITHIN * struck / len(victims)
        ):
            chaos = Chaos(self._stack, victims[struck], self._screen.say)
            self._striking.append(Task(lambda: chaos.strike(began)))

    def _recovering(self) -> str:
        tasks = zip(self._options.chaos, self._striking, strict=False)
        names = [component for component, task in tasks if task.running()]
        return f"killed and recovering: {', '.join(names)}" if names else ""

    def _weigh(self, *, wait: bool = False) -> None:
        """Reads the last measurement of memory and starts another, which walks all processes."""
        if self._memory is not None:
            if self._memory.running() and not wait:
                return
            self._found.memory_mib = max(self._found.memory_mib, self._memory.result())
        self._memory = Task(lambda: everything_mib(self._stack.status()))

    def _catch_up(self, meter: FreshnessMeter) -> None:
        began = time.monotonic()
        with self._screen.waiting("waiting until every view has the last commit"):
            lsn = self._stack.current_lsn()
            self._found.position = str(lsn)
            self._found.recoveries = tuple(task.result() for task in self._striking)
            self._stack.await_applied(lsn, _APPLIED_S)
            self._found.caught_up_s = round(time.monotonic() - began, 2)
            wait_until(meter.all_seen, _SEEN_S, _POLL_S)


def _stop_quietly(traffic: Traffic) -> None:
    # the earlier error is the one to report
    with contextlib.suppress(TrafficError):
        traffic.stop()
