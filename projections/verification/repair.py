"""Repair: reads the wrong rows of a view again from the source.

A repair takes the path of every change. The keys are read from the table, and their rows arrive
through the table's topic at the position of that read: newer than any version in a store, older
than every change that the read has not seen. A row that is missing, stale or altered is therefore
overwritten, one whose delete is missing is deleted, and a concurrent change wins as always. Nothing
bypasses the job, and concurrent repairs do no harm.

A read does not repair one kind of damage: two rows of one key in a table, since a merge treats both
alike. There the older one is removed first, in one commit and under the lock that every writer of
the view takes. Nothing is lost: both are rows of the same key, the newer version is the result of
the last merge, and the following read decides.

Rows of a derived view are in no table of the source. The job is asked to recompute it completely at
its next boundary, and to write all its rows to the other stores.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import orjson

from cdc.snapshot import request
from foundation.waiting import looks
from projections.changes.documents import decoded_key, key_values, source_key
from projections.common.throttle import Throttle
from projections.definition.views import Store
from projections.errors import NotCaughtUpError, RepairRefusedError
from projections.stores.delta.table_sink import TableSink
from projections.stores.factory import open_sink
from projections.verification.report import KeyVerdict
from projections.verification.requests import Renewals, job_runs
from projections.verification.verify import DEADLINE_S, JobVerification, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdc.capture import CaptureSpec
    from projections.definition.views import DerivedView
    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan
    from projections.verification.report import KeyFinding, ViewReport
    from projections.verification.requests import Renewal

    VerifyDerived = Callable[[JobSpec], list[ViewReport]]

RENEWAL_S: Final = 600.0
"""Longest wait for a derived view, which is computed as a whole and written to all stores."""

_POLL_S: Final = 0.5
_BY_THEMSELVES = (KeyVerdict.QUARANTINED, KeyVerdict.MOVING, KeyVerdict.ENDED)


@dataclass(frozen=True, slots=True)
class Repaired:
    """The result of a repair of a view in one store.

    Attributes:
        view: The view.
        store: The store.
        asked: Number of wrong keys.
        cured: Number of those that are correct now.
        left: Number of those that are still wrong, as far as their names are known.
        moving: Number of those that changed during every comparison.
    """

    view: str
    store: Store
    asked: int
    cured: int
    left: tuple[KeyFinding, ...] = field(default=(), repr=False)
    moving: int = 0

    @property
    def wrong(self) -> int:
        """Returns how many are still wrong."""
        return max(len(self.left), self.asked - self.cured - self.moving)


def refuse(spec: JobSpec, report: ViewReport) -> None:
    """Refuses a report whose view cannot be repaired row by row.

    Raises:
        RepairRefusedError: Its rows have no keys by which they could be read again, no wrong row is
            left, or it is a derived view and no job runs that could recompute it.
    """
    if any(view.name == report.view for view in spec.derived):
        if not job_runs(spec.config):
            raise RepairRefusedError(
                f"view {report.view} is a derived view, and no job runs that computes it",
                hint="start the job with headwater up, then repeat the command",
            )
        return
    plan = next((plan for plan in spec.plans if plan.name == report.view), None)
    if plan is None:
        raise RepairRefusedError(
            f"view {report.view} is not maintained", hint="headwater view status shows the reason"
        )
    if plan.append_only:
        raise RepairRefusedError(
            f"view {report.view} has rows without a key, which cannot be read singly",
            hint=(
                f"headwater source resnapshot {plan.schema.table} takes a snapshot of the "
                "whole table"
            ),
        )
    if plan.events is not None:
        raise RepairRefusedError(
            f"view {report.view} is a view of events, whose rows cannot be read singly",
            hint=("headwater source resnapshot eventstore.events takes a snapshot of all events"),
        )
    if any(each.verdict is KeyVerdict.ENDED for each in report.findings):
        raise RepairRefusedError(
            f"view {report.view}: ended states are wrong, and no snapshot can restore them",
            hint=(
                f"headwater view rebuild {report.view} restores them from the archive, in a "
                "new version"
            ),
        )
    if not report.equal and not _repairable(report):
        raise RepairRefusedError(
            f"view {report.view} in {report.store}: no differing row can be read again",
            hint="headwater quarantine list shows quarantined records; headwater source "
            f"resnapshot {plan.schema.table} writes the structures beside rows again",
        )


def repair(  # noqa: PLR0913  # the repair, its means, and its wait
    capture: CaptureSpec,
    spec: JobSpec,
    reports: Sequence[ViewReport],
    verify_derived: VerifyDerived,
    *,
    deadline_s: float = DEADLINE_S,
    say: Callable[[str], None] = lambda _: None,
) -> list[Repaired]:
    """Reads differing rows again, waits until the view has them, and compares them again.

    Args:
        capture: How the source is captured.
        spec: The job.
        reports: Reports of a verification; those without differences are skipped.
        verify_derived: Compares the tables of derived views; that takes Spark.
        deadline_s: Longest wait for a read, and for the view to apply it, seconds.
        say: Receives each step.

    Raises:
        RepairRefusedError: See `refuse`.
        CdcError: The keys cannot be read.
        NotCaughtUpError: A view does not apply the rows, or is not recomputed in time.
        SinkError: A store cannot be read, or a table not written.
    """
    wrong: dict[str, dict[Store, list[KeyFinding]]] = defaultdict(dict)
    made: dict[str, list[ViewReport]] = defaultdict(list)
    derived = {view.name: view for view in spec.derived}
    for report in reports:
        if report.equal:
            continue
        refuse(spec, report)
        if report.view in derived:
            made[report.view].append(report)
        else:
            wrong[report.view][report.store] = _repairable(report)
    repaired: list[Repaired] = []
    for name, of_view in made.items():
        repaired += _recompute(
            spec, derived[name], of_view, verify_derived, max(deadline_s, RENEWAL_S), say
        )
    plans = {plan.name: plan for plan in spec.plans}
    for view, by_store in wrong.items():
        plan = plans[view]
        _take_out_duplicates(spec, plan, by_store.get(Store.TABLE, ()), say)
        _request_reread(capture, plan, by_store, deadline_s, say)
        repaired += _compared_again(spec, plan, by_store, deadline_s)
    return repaired


def _repairable(report: ViewReport) -> list[KeyFinding]:
    return [each for each in report.findings if each.verdict not in _BY_THEMSELVES]


def _take_out_duplicates(
    spec: JobSpec, plan: ViewPlan, findings: Sequence[KeyFinding], say: Callable[[str], None]
) -> None:
    doubled = [each.key for each in findings if each.verdict is KeyVerdict.DUPLICATED]
    if not doubled or plan.history is not None:
        return
    columns = [plan.schema.by_name[name] for name in plan.keys]
    keys = [decoded_key(key_values(key, columns), columns) for key in doubled]
    feeding = next(each for each in spec.plans_in(Store.TABLE) if each.name == plan.name)
    with closing(TableSink(spec.config.addresses.tables)) as sink:
        removed = sink.deduplicate(feeding, keys)
    say(f"{plan.name} in table: {removed} rows taken out that had a newer one of their key")


def _request_reread(
    capture: CaptureSpec,
    plan: ViewPlan,
    by_store: Mapping[Store, Sequence[KeyFinding]],
    deadline_s: float,
    say: Callable[[str], None],
) -> None:
    columns = [plan.schema.by_name[name] for name in plan.keys]
    texts = sorted({each.key for findings in by_store.values() for each in findings})
    keys = [source_key(key_values(text, columns), columns) for text in texts]
    for start in range(0, len(keys), request.KEYS_MAX):
        part = keys[start : start + request.KEYS_MAX]
        asked = request.ask(capture, plan.schema.table, keys=part)
        say(f"{plan.name}: {len(part)} keys of {plan.schema.table} are read again")
        request.wait(capture, asked.read.id, deadline_s)


def _compared_again(
    spec: JobSpec,
    plan: ViewPlan,
    by_store: Mapping[Store, Sequence[KeyFinding]],
    deadline_s: float,
) -> list[Repaired]:
    with ExitStack() as stack:
        sinks = {
            store: stack.enter_context(closing(open_sink(store, spec.config.addresses)))
            for store in by_store
        }
        suspects = {store: [each.key for each in of_store] for store, of_store in by_store.items()}
        outcomes = JobVerification(spec, Throttle(), deadline_s=deadline_s).judged(
            plan, sinks, suspects
        )
    repaired = []
    for store, findings in by_store.items():
        outcome = outcomes[store]
        asked, left = len(findings), tuple(outcome.findings)
        moving = len(outcome.moving)
        cured = asked - len(left) - moving
        repaired.append(Repaired(plan.name, store, asked, cured, left, moving))
    return repaired


def _recompute(  # noqa: PLR0913, PLR0917  # see `repair`
    spec: JobSpec,
    view: DerivedView,
    reports: Sequence[ViewReport],
    verify_derived: VerifyDerived,
    deadline_s: float,
    say: Callable[[str], None],
) -> list[Repaired]:
    """Has the job recompute a derived view, and verifies it again."""
    stores = {report.store for report in reports}
    if Store.TABLE in stores:  # its differences may have reached the other stores
        stores |= view.to
    renewals = Renewals(spec.config)
    asked = renewals.ask(view.name, stores)
    in_stores = ", ".join(sorted(stores))
    say(f"{view.name}: the job recomputes it at its next boundary, in {in_stores}")
    _await_renewal(spec.config, renewals, asked, deadline_s)
    again = {report.store: report for report in _verified_again(spec, view, stores, verify_derived)}
    repaired = []
    for report in reports:
        left = again.get(report.store)
        if left is None:
            continue
        count = _count(report)
        cured = max(0, count - _count(left) - left.moving)
        repaired.append(Repaired(view.name, report.store, count, cured, left.findings, left.moving))
    return repaired


def _await_renewal(
    config: JobConfig, renewals: Renewals, asked: Renewal, deadline_s: float
) -> None:
    waiting = asked.waiting
    for _ in looks(deadline_s, _POLL_S):
        left = renewals.of_view(asked.view)
        if left is None:
            return
        waiting = left.waiting
        runs = job_runs(config)
        if not runs:
            break
    fault = _fault(config, asked.view) if runs else "the job has ended"
    raise NotCaughtUpError(
        f"view {asked.view} was not recomputed",
        detail=f"pending in {', '.join(waiting)}" + (f": {fault}" if fault else ""),
        hint="the request stays until the job can do it: headwater view status shows it; "
        "then verify the view",
    )


def _verified_again(
    spec: JobSpec, view: DerivedView, stores: set[Store], verify_derived: VerifyDerived
) -> list[ViewReport]:
    beside = stores - {Store.TABLE}
    reports = verify(spec, views=[view.name], stores=beside) if beside else []
    if Store.TABLE in stores:
        reports += verify_derived(replace(spec, derived=(view,)))
    return reports


def _count(report: ViewReport) -> int:
    return report.missing + report.extra + report.different


def _fault(config: JobConfig, view: str) -> str:
    """Returns the job's error for a view that it cannot maintain."""
    try:
        status = orjson.loads(config.derived_file.read_bytes()).get(view, {})
    except (FileNotFoundError, orjson.JSONDecodeError):
        return ""
    faults = [
        status.get("error"),
        *(each.get("error") for each in status.get("stores", {}).values()),
    ]
    return next((str(fault["message"]) for fault in faults if fault), "")
