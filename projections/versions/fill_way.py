"""Fill way: whether the job's Spark or the command replays the archive into a version, and why."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.archive.lanes import bulk_refusal
from projections.archive.progress_note import state_of
from projections.errors import PlanError
from projections.planning import binding
from projections.versions.bulk_requests import BulkRequests

if TYPE_CHECKING:
    import psycopg

    from projections.definition.views import View
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan
    from projections.versions.version import FillProgress

SLOTS_MIN: Final = 2
"""Tasks that the job's Spark must run in parallel, so that one stays free for live views."""


class FillWay(NamedTuple):
    """Whether the job or the command replays the archive into a version, and why.

    Attributes:
        by_job: Whether tasks of the job's Spark do it; else tasks of the command's process.
        why: The reason, in words.
    """

    by_job: bool
    why: str


def way_of(config: JobConfig, plan: ViewPlan | None, changes: int) -> FillWay:
    """Decides whether the job or the command replays the archive into a version.

    Args:
        config: The job's configuration.
        plan: The version; None if it does not fit its table.
        changes: Archived changes for it.
    """
    least = config.rebuild_rows_min
    if changes < least:
        return FillWay(False, f"fewer changes than {least:,}")
    why = "it does not fit its table" if plan is None else bulk_refusal(plan)
    if why is not None:
        return FillWay(False, why)
    server = BulkRequests(config).server()
    if server is None:
        return FillWay(False, "the job does not run, is starting, or is of another release")
    if server.slots < SLOTS_MIN:
        return FillWay(False, "the job's Spark runs one task at a time, and live views need it")
    return FillWay(True, f"at least {least:,} changes")


def way_planned(
    connection: psycopg.Connection[Any],
    config: JobConfig,
    view: View,
    changes: int,
    begun: FillProgress | None,
) -> FillWay:
    """Predicts whether the job or the command will replay the archive; changes nothing.

    Args:
        connection: To the source.
        config: The job's configuration.
        view: The view as it is declared now.
        changes: Archived changes for it.
        begun: Progress of an unfinished fill; None if there is none.
    """
    state = None if begun is None else state_of(begun.progress)
    if begun is not None and begun.archive is not None:
        return FillWay(False, "only newer records are left")
    if state is not None and not state.bulk:
        return FillWay(False, "it was begun so")
    plan = None
    if changes >= config.rebuild_rows_min:  # below this number, nothing else matters
        with suppress(PlanError):
            bound = binding.bind(connection, config.source, [view], hiding=config.hiding)
            plan = next(iter(bound.plans), None)
    return way_of(config, plan, changes)
