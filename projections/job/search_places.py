"""Places of views in search: made before the queries start, so that none holds up the others.

The engine may refuse a view's index for good: an analyzer that it has not, a field that it keeps
for itself, an index that bears the name of the view. Such a view stands still in search until that
is corrected and the job started again; in its other stores it goes on, and so do all other views.
What it lacks by then is read anew.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from projections.common.fault import Fault
from projections.definition.views import Store
from projections.errors import IndexLostError, IndexRefusedError, PlanError, SinkError
from projections.job import backfill
from projections.planning.job_spec import PausedView
from projections.stores import identity
from projections.stores.factory import open_sink

if TYPE_CHECKING:
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

_log = structlog.get_logger(__name__)


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
    found = {}
    with closing(open_sink(Store.SEARCH, spec.addresses)) as sink:
        for plan in plans:
            try:
                sink.prepare(plan)
            except (IndexRefusedError, PlanError) as error:
                found[plan.name] = Fault.of(error)
                _log.warning(
                    "a view stands still in search",
                    view=plan.name,
                    code=error.code,
                    what=error.message,
                )
            except IndexLostError as error:
                backfill.leave_out(spec, Store.SEARCH, [plan.name])
                _log.warning("a view is read anew", view=plan.name, why=error.message)
    return found


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
