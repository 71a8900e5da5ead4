"""Recovery of views that the cache has lost or lays out differently, and of indexes in search.

Views of the cache are treated like a backfill: their tables are read again completely, and until
that read is applied they claim no position. Rows that the cache still has stay readable meanwhile;
rows that are gone at the source are removed by the sweep that follows every snapshot.

Indexes of search are created before the queries start, so that none delays the others. The engine
may refuse an index for good: an unknown analyzer, a reserved field, an index with the view's name.
Such a view is paused in search until that is corrected and the job restarted. It continues in its
other stores, as do all other views; the rows that it then lacks are read again.
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
    """Returns the recorded identity of a job's cache, kept beside the query's checkpoint."""
    file = config.checkpoint(Store.CACHE).with_suffix(".epoch")
    return CacheEpoch(config.cache_url, config.addresses.cache_prefix, file)


def recovered(spec: JobSpec, epoch: CacheEpoch) -> JobSpec:
    """Requests reads for the views that need one; a cache that does not answer is checked later.

    Every step may be repeated: the identity of the cache is renewed last.

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
            "views of the cache are read again",
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
        epoch.lost.clear()  # the next look finds the same
        _log.warning("the cache cannot be checked yet", code=error.code, reason=error.message)
    return spec


def _rid(spec: JobSpec) -> None:
    """Removes sorted sets and counters of views that no longer declare any."""
    sink = CacheSink(spec.config.addresses.cache_url, spec.config.addresses.cache_prefix)
    try:
        for plan in spec.plans_in(Store.CACHE):
            if not plan.cache.linked:
                sink.drop_beside(plan)
    finally:
        sink.close()


def prepared(spec: JobSpec) -> JobSpec:
    """Creates the indexes of the views in search; leaves out those that the engine refuses.

    A store that does not answer is left to its query, which waits for it.

    Returns:
        The job, with refused views paused in search.
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
        _log.warning("search cannot be checked yet", code=error.code, reason=error.message)
        return spec
    return halted


def _refused(spec: JobSpec, plans: tuple[ViewPlan, ...]) -> dict[str, Fault]:
    faults: dict[str, Fault] = {}
    with closing(open_sink(Store.SEARCH, spec.config.addresses)) as sink:
        for plan, error in zip(plans, side_by_side(partial(_tried, sink), plans), strict=True):
            if isinstance(error, IndexLostError):
                backfill.leave_out(spec, Store.SEARCH, [plan.name])
                _log.warning("a view is read again", view=plan.name, reason=error.message)
            elif error is not None:
                faults[plan.name] = Fault.of(error)
                _log.warning(
                    "a view is paused in search",
                    view=plan.name,
                    code=error.code,
                    reason=error.message,
                )
    return faults


def _tried(sink: Sink, plan: ViewPlan) -> IndexRefusedError | PlanError | IndexLostError | None:
    """Creates the index of a view; returns the error if it concerns only this view."""
    try:
        sink.prepare(plan)
    except (IndexRefusedError, PlanError, IndexLostError) as error:
        return error
    return None


def _without(spec: JobSpec, refused: dict[str, Fault]) -> JobSpec:
    """Returns the job with some views paused in search."""
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
