"""Verification: compares every view in every store with the source, row by row.

Writes may continue meanwhile, see `projections.verification.recheck`. In the cache, the lookups,
counters and leaderboards beside the rows are compared as well. A derived view in search and cache
is compared with its published table; `projections.job.batch.verify_derived` compares the table
itself.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING, Any

from projections.common.fault import Fault
from projections.common.throttle import Throttle
from projections.definition.views import Store
from projections.errors import PlanError
from projections.incremental.delivery import plan_at
from projections.publishing.published_versions import Published
from projections.stores.factory import open_sink
from projections.verification import source_rows
from projections.verification import truth as verification_truth
from projections.verification.compared_stores import ComparedStores
from projections.verification.keyless import KeylessPass
from projections.verification.recheck import RecheckOutcome, Rounds
from projections.verification.report import Uncompared
from projections.verification.staleness import with_staleness
from projections.verification.truth import SourceTruth, TableTruth
from projections.verification.view_pass import ViewPass
from projections.verification.wait import PositionWaiter

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from cdc.lsn import Lsn
    from projections.changes.sink import Sink
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.verification.compared_stores import LeftOut
    from projections.verification.report import ViewReport
    from projections.verification.truth import Truth

DEADLINE_S = 60.0
"""Longest wait for a view to apply the rows that were read from the source."""


def verify(  # noqa: PLR0913  # each has its default
    spec: JobSpec,
    *,
    views: Collection[str] = (),
    stores: Collection[Store] = (),
    through: Lsn | None = None,
    deadline_s: float = DEADLINE_S,
    resting: bool = False,
    throttle: Throttle | None = None,
    uncompared: Callable[[Uncompared], None] | None = None,
) -> list[ViewReport]:
    """Compares views of a job with their source.

    Args:
        spec: The job.
        views: The views; empty for all.
        stores: The stores; empty for all of each view.
        through: Position that every view must reach before the comparison.
        deadline_s: Longest wait for a view to reach a position, seconds.
        resting: Whether the caller guarantees that nothing is written and everything is applied:
            there is no wait, and no job need run.
        throttle: Limits the share of the time to use; None for no limit.
        uncompared: Receives a view that cannot be compared in one store, while others continue.
            Without it, the error is raised.

    Raises:
        NotCaughtUpError: A view did not reach a position in time.
        VerificationError: The source cannot be read.
        SinkError: A store cannot be read.
    """
    verification = JobVerification(
        spec, throttle or Throttle(), deadline_s=deadline_s, resting=resting, uncompared=uncompared
    )
    if through is not None:
        verification.wait(views, stores, through)
    reports: list[ViewReport] = []
    for plan in verification.plans(views):
        wanted = [store for store in sorted(plan.to) if not stores or store in stores]
        steps = verification.steps(plan, wanted, reports)
        for _ in steps:
            verification.throttle.step()
    return with_staleness(spec, reports)


class JobVerification:
    """Verifies the views of one job, one after the other.

    Args:
        spec: The job.
        throttle: Limits the share of the time to use.
        deadline_s: Longest wait for a view to reach a position, seconds.
        resting: See `verify`.
        uncompared: See `verify`.
    """

    def __init__(
        self,
        spec: JobSpec,
        throttle: Throttle,
        *,
        deadline_s: float = DEADLINE_S,
        resting: bool = False,
        uncompared: Callable[[Uncompared], None] | None = None,
    ) -> None:
        self.throttle = throttle
        self._spec = spec
        self._deadline_s = deadline_s
        self._resting = resting
        self._uncompared = uncompared

    def plans(self, views: Collection[str] = ()) -> Iterator[ViewPlan]:
        """Yields the views; derived views by their published tables."""
        for plan in self._spec.plans:
            if not views or plan.name in views:
                yield plan
        for view in self._spec.derived:
            places = view.to - {Store.TABLE}
            table = self._published(view.name)
            if not places or table is None or (views and view.name not in views):
                continue
            try:
                plan = plan_at(self._spec.config, view, table.version)
            except PlanError as error:
                if self._uncompared is None:
                    raise
                for store in sorted(places):
                    self._uncompared(Uncompared(view.name, store, Fault.of(error)))
            else:
                yield plan

    def wait(self, views: Collection[str], stores: Collection[Store], through: Lsn) -> None:
        """Waits until views have reached a position in their stores."""
        spec = self._spec
        places = {(plan.name, store) for plan in spec.plans for store in plan.to}
        places |= {(v.name, store) for v in spec.derived for store in (*v.to, Store.TABLE)}
        wanted = {
            (view, store)
            for view, store in places
            if (not views or view in views) and (not stores or store in stores)
        }
        with self._session() as connection:
            PositionWaiter(connection, self.throttle, deadline_s=self._deadline_s).wait(
                wanted, through
            )

    def steps(
        self, plan: ViewPlan, stores: Collection[Store], reports: list[ViewReport]
    ) -> Iterator[None]:
        """Compares a view in steps; its reports are complete after the last one.

        Raises:
            VerificationError: See `verify`.
            SinkError: A store cannot be read, and no receiver is given.
        """
        derived = any(view.name == plan.name for view in self._spec.derived)
        wanted = [store for store in stores if not (derived and store is Store.TABLE)]
        if not wanted:
            return
        with ExitStack() as stack:
            reader, other = (stack.enter_context(self._session()) for _ in range(2))
            sinks = {}
            for store in wanted:
                sink = open_sink(store, self._spec.config.addresses)
                sinks[store] = stack.enter_context(closing(sink))
            compared = ComparedStores(sinks, self._left_out(plan.name))
            stack.enter_context(compared.every())
            reach = PositionWaiter(
                other, self.throttle, deadline_s=self._deadline_s, resting=self._resting
            )
            view_pass = ViewPass(plan, compared, reach, self.throttle, self._spec.config)
            if plan.append_only:
                keyless = KeylessPass(
                    reader, other, plan, reach, self.throttle, resting=self._resting
                )
                yield from view_pass.keyless_steps(keyless)
            else:
                waiting = partial(verification_truth.keys, other, plan)
                tables = self._spec.config.addresses.tables
                truth: Truth = (
                    TableTruth(tables, plan, partial(self._published, plan.name))
                    if derived
                    else SourceTruth(reader, plan, reach, self.throttle)
                )
                yield from view_pass.steps(truth, waiting)
            reports += view_pass.reports()

    def judged(
        self, plan: ViewPlan, sinks: Mapping[Store, Sink], suspects: Mapping[Store, Iterable[str]]
    ) -> dict[Store, RecheckOutcome]:
        """Compares some keys of a view of a table, by text.

        Raises:
            VerificationError: See `verify`.
            SinkError: A store cannot be read.
        """
        outcomes = {store: RecheckOutcome() for store in suspects}
        with self._session() as reader, self._session() as other:
            reach = PositionWaiter(
                other, self.throttle, deadline_s=self._deadline_s, resting=self._resting
            )
            truth = SourceTruth(reader, plan, reach, self.throttle)
            waiting = partial(verification_truth.keys, other, plan)
            rounds = Rounds(plan, truth, ComparedStores(sinks), reach, self.throttle, waiting)
            for by_store in rounds.judged(suspects):
                for store, outcome in by_store.items():
                    outcomes[store].add(outcome)
        return outcomes

    def _left_out(self, view: str) -> LeftOut | None:
        tell = self._uncompared
        if tell is None:
            return None
        return lambda store, error: tell(Uncompared(view, store, Fault.of(error)))

    def _published(self, view: str) -> Any:
        latest = Published(self._spec.config.addresses.tables, self._spec.config.source).latest()
        return None if latest is None else latest.views.get(view)

    def _session(self) -> Any:
        return source_rows.session_of(self._spec.config.source_dsn, self._spec.config.hiding.salt)
