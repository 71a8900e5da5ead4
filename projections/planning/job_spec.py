"""JobSpec: a configured job and its bound views."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from projections.definition.cross_reads import NO_CROSS_READS
from projections.definition.views import Store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from projections.common.driver_lock import DriverToken
    from projections.common.fault import Fault
    from projections.common.offsets import Offsets
    from projections.definition.cross_reads import CrossReads
    from projections.definition.views import DerivedView, View
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan


@dataclass(frozen=True, slots=True)
class PausedView:
    """A view that is paused in some or all of its stores.

    Attributes:
        name: Its name.
        to: The stores.
        topics: Topics that it would read.
        fault: Why it is paused, and how to resume it.
    """

    name: str
    to: frozenset[Store]
    topics: tuple[str, ...]
    fault: Fault


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job and its views, bound to the source's tables as these are now.

    Attributes:
        config: The configuration, which no binding changes.
        plans: Its views.
        views: Declared views of one table or of events: the job binds them and their other versions
            again whenever tables or versions change. Without them it keeps its plans.
        derived: Versions of derived views, under their physical names, each after its inputs.
        declared_derived: Those views as declared: the job reads their versions at every boundary.
            Without them it keeps `derived`.
        paused: Paused views.
        awaited: Snapshots that backfilled views wait for, by view and store: for each topic the
            number of the snapshot with its rows, or of a later one; see `backfill`.
        joining: Versions that were filled from the archive and that no query has adopted yet: the
            offset up to which each has all records of a partition.
        mark: The driver's mark in the folder of the tables, which executors check; None if they are
            the driver's own process.
        cross_reads: The cross-source reads of this source.
    """

    config: JobConfig
    plans: tuple[ViewPlan, ...] = ()
    views: tuple[View, ...] = ()
    derived: tuple[DerivedView, ...] = ()
    declared_derived: tuple[DerivedView, ...] = ()
    paused: tuple[PausedView, ...] = ()
    awaited: Mapping[tuple[str, Store], Mapping[str, int]] = field(default_factory=dict)
    joining: Mapping[str, Offsets] = field(default_factory=dict)
    mark: str | None = None
    driver_token: DriverToken | None = None
    cross_reads: CrossReads = NO_CROSS_READS
    _by_store: dict[Store, tuple[ViewPlan, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def writing(self) -> AbstractContextManager[None]:
        """Keeps other drivers out while something is written; see `DriverToken.writing`."""
        return writing(self.driver_token)

    def plans_in(self, store: Store) -> tuple[ViewPlan, ...]:
        """Returns the views in a store."""
        if store not in self._by_store:  # asked for several times a second
            self._by_store[store] = self._found_in(store)
        return self._by_store[store]

    def _found_in(self, store: Store) -> tuple[ViewPlan, ...]:
        read = self.cross_reads.fed.union(*(view.inputs for view in self.derived))
        return tuple(
            replace(plan.in_store(store), feeds=store is Store.TABLE and plan.view in read)
            for plan in self.plans
            if store in plan.to
        )

    def topics_in(self, store: Store) -> frozenset[str]:
        """Returns the topics that a store's query reads; it skips those of paused views."""
        read = {topic for plan in self.plans_in(store) for topic in plan.topics}
        if store is Store.TABLE:
            read.add(
                self.config.heartbeat_topic
            )  # its transactions determine the boundaries of the tables
        return frozenset(read).union(*(view.topics for view in self.paused if store in view.to))


def writing(driver_token: DriverToken | None) -> AbstractContextManager[None]:
    """Excludes other drivers during a write; does nothing in a process that is not a driver."""
    return nullcontext() if driver_token is None else driver_token.writing()
