"""Recovery of the cache's views: those that the cache has lost, or laid out in another way.

They are treated as views that come late: their tables are read anew as a whole, and until that read
is in them they claim no position. What the cache still has stays readable meanwhile; what is gone
at the source leaves it once the read has come, by the sweep that follows every whole read.

Places of views in search: made before the queries start, so that none holds up the others.

The engine may refuse a view's index for good: an analyzer that it has not, a field that it keeps
for itself, an index that bears the name of the view. Such a view stands still in search until that
is corrected and the job started again; in its other stores it goes on, and so do all other views.
What it lacks by then is read anew.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from cdc.postgres import session
from projections.common.fault import Fault
from projections.common.side_by_side import side_by_side
from projections.definition.views import Store
from projections.errors import IndexLostError, IndexRefusedError, PlanError, SinkError
from projections.job import backfill
from projections.planning.job_spec import PausedView
from projections.publishing import positions
from projections.stores import identity
from projections.stores.factory import open_sink
from projections.stores.valkey.epoch import CacheEpoch
from projections.stores.valkey.sink import CacheSink

if TYPE_CHECKING:
    from projections.changes.sink import Sink
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

_log = structlog.get_logger(__name__)


def epoch_of(config: JobConfig) -> CacheEpoch:
    """Returns the memory of a job's cache, which lies beside the query's checkpoint."""
    file = config.checkpoint(Store.CACHE).with_suffix(".epoch")
    return CacheEpoch(config.cache_url, config.addresses.cache_prefix, file)


def recovered(spec: JobSpec, epoch: CacheEpoch) -> JobSpec:
    """Has those views read anew that need it; a cache that does not answer is looked at later.

    Every step may be taken again: the memory of the cache is renewed last.

    Raises:
        CdcError: The source does not answer.
    """
    plans = spec.plans_in(Store.CACHE)
    if not plans:
        return spec
    try:
        reason = epoch.look()
        again = list(plans) if reason else epoch.reformed(plans)
        if not again:
            return spec
        _log.warning(
            "views of the cache are read anew",
            views=[plan.name for plan in again],
            why=reason or "they are laid out in another way",
        )
        names = [plan.name for plan in again]
        with session.connect(spec.config.source_dsn) as connection:
            positions.withdraw(connection, names, Store.CACHE)
        backfill.forget(spec, Store.CACHE, names)
        if reason:
            epoch.renew(again)
        else:
            epoch.mark(again)
            _rid(spec)
    except SinkError as error:
        epoch.lost.clear()  # whoever reaches it next finds the same
        _log.warning("the cache is not looked at yet", code=error.code, what=error.message)
    return spec


def _rid(spec: JobSpec) -> None:
    """Removes what lies beside the rows of views that have nothing there any more."""
    sink = CacheSink(spec.config.addresses.cache_url, spec.config.addresses.cache_prefix)
    try:
        for plan in spec.plans_in(Store.CACHE):
            if not plan.cache.linked:
                sink.drop_beside(plan)
    finally:
        sink.close()


def prepared(spec: JobSpec) -> JobSpec:
    """Makes the places of the views in search; leaves out those that the engine refuses.

    A store that does not answer is left to its query, which waits for it.

    Args:
        spec: The job, its views bound.

    Returns:
        The job, in which a view whose place is refused stands still in search.
    """
    plans = spec.plans_in(Store.SEARCH)
    if not plans:
        return spec
    try:
        backfill.forget_lost(spec, Store.SEARCH)
        refused = _refused(spec, plans)
        backfill.leave_out(spec, Store.SEARCH, refused)
        halted = _without(spec, refused)
        identity.keep(halted, Store.SEARCH)
    except SinkError as error:
        _log.warning("search is not looked at yet", code=error.code, what=error.message)
        return spec
    return halted


def _refused(spec: JobSpec, plans: tuple[ViewPlan, ...]) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    with closing(open_sink(Store.SEARCH, spec.config.addresses)) as sink:
        for plan, error in zip(plans, side_by_side(partial(_tried, sink), plans), strict=True):
            if isinstance(error, IndexLostError):
                backfill.leave_out(spec, Store.SEARCH, [plan.name])
                _log.warning("a view is read anew", view=plan.name, why=error.message)
            elif error is not None:
                found[plan.name] = Fault.of(error)
                _log.warning(
                    "a view stands still in search",
                    view=plan.name,
                    code=error.code,
                    what=error.message,
                )
    return found


def _tried(sink: Sink, plan: ViewPlan) -> IndexRefusedError | PlanError | IndexLostError | None:
    """Makes the place of a view; returns why it cannot be, where that is no matter of others."""
    try:
        sink.prepare(plan)
    except (IndexRefusedError, PlanError, IndexLostError) as error:
        return error
    return None


def _without(spec: JobSpec, refused: dict[str, Fault]) -> JobSpec:
    """The job with views that stand still in search."""
    here = frozenset({Store.SEARCH})
    paused = tuple(
        PausedView(plan.name, here, tuple(plan.topics), refused[plan.name])
        for plan in spec.plans
        if plan.name in refused
    )
    plans = tuple(
        replace(plan, to=plan.to - here) if plan.name in refused else plan for plan in spec.plans
    )
    return replace(spec, plans=plans, paused=(*spec.paused, *paused))
