"""`headwater view verify` and `headwater view repair`: whether views equal their source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import EXIT_UNHEALTHY
from foundation.suggestion import did_you_mean
from headwater.cli.hints import completed
from headwater.cli.options import Json, ProjectOptions, SourceOptions, Yes
from headwater.cli.output import escape, print_json, print_rows, stderr
from headwater.cli.sources import for_each
from headwater.errors import UnhealthyError, UsageError
from headwater.platform.platform import Platform
from projections.definition.views import Store, maintained_stores

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from projections.common.fault import Fault
    from projections.definition.views import DerivedView, View
    from projections.planning.job_spec import PausedView
    from projections.verification.repair import Repaired
    from projections.verification.report import Uncompared, ViewReport

_CATCH_UP_S = 120.0
_BUDGET = 1.0


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of comparing views with their source.

    Args:
        reports: One for each compared view in each store.
        left_out: Views that were not compared, because their store cannot be written.
        paused: Why views are paused.
    """

    reports: Sequence[ViewReport]
    left_out: Sequence[Uncompared] = ()
    paused: Sequence[Fault] = ()


def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[VIEW]...", help="The views; default: all.")
    ] = None,
    *,
    store: Annotated[
        Store | None, typer.Option("--store", help="Only this store; default: all.")
    ] = None,
    budget: Annotated[
        float,
        typer.Option(
            "--budget", min=0.01, max=1, help="Share of the time that verification may use."
        ),
    ] = _BUDGET,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Compare views in their stores with the source. Exits 3 if anything differs.

    Writes may continue. A view is verified through the reported position: every change committed up
    to it has been applied correctly. Keys that changed each time they were compared count as
    moving, and are neither confirmed nor reported as wrong. In the cache, lookups, counters and
    leaderboards are compared as well. If a store does not answer, this is reported and the other
    stores are compared.
    """
    wanted = names or []
    refuse_unknown({n: v for part in options.parts() for n, v in part.views.items()}, wanted, store)

    def compared(platform: Platform) -> VerificationReport:
        project = platform.project
        own = [name for name in wanted if name in project.views]
        return gather(platform, own, store, budget=budget)

    which = ", ".join(wanted) or "all views"
    with stderr.status(f"[dim]comparing {escape(which)} with the source"):
        done = for_each(options.platforms(wanted), compared)
    reports = list(done.results.values())
    whole = VerificationReport(
        [each for report in reports for each in report.reports],
        [each for report in reports for each in report.left_out],
        [each for report in reports for each in report.paused],
    )
    present(whole, as_json=as_json)
    done.end()


def gather(
    platform: Platform,
    names: Sequence[str],
    store: Store | None,
    *,
    budget: float = _BUDGET,
    catch_up_s: float = _CATCH_UP_S,
) -> VerificationReport:
    """Compares views with their source.

    Args:
        platform: The project's.
        names: The views; all if there is none.
        store: Only there; everywhere if it is None.
        budget: Share of the time to work, above 0 and up to 1.
        catch_up_s: How long all views are waited for that are behind, seconds.

    Raises:
        UsageError: There is no such view, or not in that store.
        UnhealthyError: The source was never captured, all views that are named are paused, or a
            view is still behind.
    """
    paused = _check(platform, names, store)
    left_out: list[Uncompared] = []
    if not names and store is None:
        left_out += platform.await_stores(platform.current_lsn(), catch_up_s)
    reports = platform.views.verify(
        names,
        [store] if store else [],
        budget=budget,
        but={(each.view, each.store) for each in left_out},
        uncompared=left_out.append,
    )
    return VerificationReport(reports, left_out, paused)


def present(verified: VerificationReport, *, as_json: bool) -> None:
    """Prints the result of a verification.

    Raises:
        UnhealthyError: A view differs, or was not compared; not with `as_json`.
        Exit: The same with `as_json`, or a view is paused; with the exit code for unhealthy.
    """
    _print(verified.reports, as_json=as_json, left_out=verified.left_out)
    _print_left_out(verified.left_out)
    if not all(report.equal for report in verified.reports):
        if as_json:
            raise typer.Exit(EXIT_UNHEALTHY)
        _show_examples(verified.reports)
        view = next(report.view for report in verified.reports if not report.equal)
        hint = f"headwater view repair {view} shows the rows that a repair would read"
        raise UnhealthyError("views differ from their source", hint=hint)
    print_paused(verified.paused)
    if verified.left_out and not as_json:
        raise UnhealthyError(
            "some views could not be compared",
            detail=", ".join(f"{each.view} in {each.store}" for each in verified.left_out),
            hint=verified.left_out[0].fault.hint,
        )
    if verified.paused or verified.left_out:
        raise typer.Exit(EXIT_UNHEALTHY)


def repair(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The view.")],
    *,
    store: Annotated[
        Store | None, typer.Option("--store", help="Only this store; default: all.")
    ] = None,
    yes: Yes = False,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Read differing rows again from the source, then compare. Exits 3 if any still differ.

    Without --yes, only shows the differences, and exits 3 if there are any. The rows arrive through
    the log, newer than the stored rows and older than every later change; nothing else is
    written. If a table has two rows of one key, the older one is removed first. The running job
    recomputes a derived view as a whole and writes it to its stores again.
    """
    platform = options.platform(name)
    _check(platform, [name], store)
    reports = platform.views.verify([name], [store] if store else [])
    wrong = [report for report in reports if not report.equal]
    if not wrong or not yes:
        _print(reports, as_json=as_json)
        if wrong:
            _show_examples(wrong)
            stderr.print(f"  [dim]repair[/] headwater view repair {escape(name)} --yes")
            raise typer.Exit(EXIT_UNHEALTHY)
        return
    done = platform.views.repair(wrong, lambda step: stderr.print(escape(step), soft_wrap=True))
    present_repaired(done, as_json=as_json)


def present_repaired(done: Sequence[Repaired], *, as_json: bool) -> None:
    """Prints the result of a repair.

    Raises:
        Exit: Something is still wrong.
    """
    _print_repaired(done, as_json=as_json)
    if any(each.wrong for each in done):
        if not as_json:
            _show_left(done)
        raise typer.Exit(EXIT_UNHEALTHY)


def print_paused(faults: Iterable[Fault]) -> None:
    """Prints why views are paused, and how to resume them."""
    for fault in faults:
        stderr.print(f"{fault.message}: {escape(fault.detail or fault.code)}")
        stderr.print(f"  {escape(completed(fault.hint or ''))}")


def _check(platform: Platform, names: Sequence[str], store: Store | None) -> list[Fault]:
    """Refuses views that cannot be verified; returns why requested views are paused."""
    refuse_unknown(platform.project.views, names, store)
    platform.require_captured()
    return refuse_paused(platform.views.bound().paused, names)


def refuse_unknown(
    declared: Mapping[str, View | DerivedView], names: Sequence[str], store: Store | None
) -> None:
    """Refuses a view that is not declared, or does not live in the store.

    Raises:
        UsageError: Names the view, and the closest names or its stores.
    """
    for name in names:
        view = declared.get(name)
        if view is None:
            hint = did_you_mean(name, declared, "headwater view list")
            raise UsageError(f"no view is named {name[:80]}", hint=hint)
        if store is not None and store not in maintained_stores(view):
            stores = ", ".join(sorted(maintained_stores(view)))
            raise UsageError(f"view {name} is not in {store}", hint=f"its stores: {stores}")


def refuse_paused(paused: Iterable[PausedView], names: Sequence[str]) -> list[Fault]:
    """Returns why requested views are paused.

    Raises:
        UnhealthyError: All named views are.
    """
    faults = {view.name: view.fault for view in paused}
    if names and set(names) <= faults.keys():
        fault = faults[names[0]]
        raise UnhealthyError(fault.message, detail=fault.detail, hint=fault.hint)
    return [fault for view, fault in faults.items() if not names or view in names]


def _print_left_out(left_out: Iterable[Uncompared]) -> None:
    """Prints why views were not compared in some stores."""
    for each in left_out:
        why = f"{each.fault.code} {each.fault.message}"
        detail = f": {each.fault.detail}" if each.fault.detail else ""
        line = f"{each.view} in {each.store} is not compared: {why}{detail}"
        stderr.print(escape(line), soft_wrap=True)


def _print(
    reports: Sequence[ViewReport], *, as_json: bool, left_out: Iterable[Uncompared] = ()
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "view": report.view,
            "store": report.store,
            "rows": report.rows,
            "withheld": report.withheld,
            "missing": report.missing,
            "extra": report.extra,
            "different": report.different,
            "quarantined": report.quarantined,
            "moving": report.moving,
            "applied_through": report.applied_through and str(report.applied_through),
            "verified_through": report.verified_through and str(report.verified_through),
            **(
                {
                    "stale": report.stale,
                    "duplicated": report.duplicated,
                    "columns": report.columns,
                    "examples": report.examples,
                    "fault": None,
                }
                if as_json
                else {}
            ),
        }
        for report in reports
    ]
    if as_json:
        rows += [
            {"view": each.view, "store": each.store, "fault": asdict(each.fault)}
            for each in left_out
        ]
    print_rows(rows, as_json=as_json, title="", empty="nothing is compared")


def _print_repaired(done: Sequence[Repaired], *, as_json: bool) -> None:
    rows = [
        {
            "view": each.view,
            "store": str(each.store),
            "asked": each.asked,
            "cured": each.cured,
            "moving": each.moving,
            "left": each.wrong,
            **({"examples": [str(finding) for finding in each.left[:5]]} if as_json else {}),
        }
        for each in done
    ]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, as_json=False, title="", empty="nothing was to be repaired")


def _show_left(done: Sequence[Repaired]) -> None:
    for each in done:
        for finding in each.left[:5]:
            stderr.print(f"  {escape(str(finding))}", soft_wrap=True)


def _show_examples(reports: Iterable[ViewReport]) -> None:
    """Prints the differing rows for the user; they are never logged."""
    for report in reports:
        if report.examples:
            stderr.print(f"{report.view} in {report.store}, such as")
        for example in report.examples:
            stderr.print(f"  {escape(example)}", soft_wrap=True)
