"""`headwater view`: the views, their positions, and whether they equal their source."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headwater.cli import difference, plan, rebuild, replay, state, token, verification, version
from headwater.cli.options import Commands, Json, ProjectOptions, SourceOptions
from headwater.cli.output import counted, duration, escape, print_json, print_rows, stderr, stdout
from headwater.cli.sources import for_each
from projections.definition.views import DerivedView, view_of
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headwater.platform.platform import Platform
    from projections.common.fault import Fault
    from projections.definition.views import Store
    from projections.verification.results_table import Verified

    ViewInStore = tuple[str, Store]

app = Commands(help="Views: status, versions, verification.", no_args_is_help=True)
app.command("diff")(difference.diff)
app.command("state")(state.state)
app.command("wait")(token.wait)
app.command("rebuild")(rebuild.rebuild)
app.command("replay")(replay.replay)
version.register(app)
app.command("verify")(verification.verify)
app.command("repair")(verification.repair)

_NO_RECORDS = dict.fromkeys(("records", "applied", "quarantined", "filtered"))


@app.command("list")
def list_views(
    *,
    versions: Annotated[
        bool,
        typer.Option("--versions", help="List all versions, and which one is active."),
    ] = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List the declared views and their stores."""
    if versions:
        row_of = version.row_of if as_json else version.line_of
        done = for_each(options.platforms(), lambda each: version.versions_of(each).all())
        rows = [
            {**done.named(source), **row_of(each)}
            for source, versions_of_source in done.results.items()
            for each in versions_of_source
        ]
        print_rows(rows, as_json=as_json, title="", empty="the job has kept no view yet")
        done.end()
        return
    parts = options.parts()
    rows = [
        {
            **({"source": part.source.name} if part.shares_home else {}),
            "view": view.name,
            "table": ", ".join(view.inputs) if isinstance(view, DerivedView) else str(view.table),
            "stores": ", ".join(sorted(view.to)),
        }
        for part in parts
        for view in part.views.values()
    ]
    print_rows(rows, as_json=as_json, title="", empty="no view is declared")


@app.command("status")
def status(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Show the position of each view in each store, and the outcome of its records.

    Record counts are since the start of the job: each record is applied, quarantined or filtered
    out. Rows that did not meet an expectation are counted as well. Quarantined records are listed
    beside the counts; unresolved records wait for a value and need no action. The state is empty if
    the view is healthy; a code states why a store is not written now, or which background task
    fails. Views are verified in the background: the listing shows the position through which each
    was last equal to its source, and how many rows were wrong at the last comparison.

    While a large table is loaded for the first time, the number of copied rows is shown, with the
    time until all are there. After a pause, the job has a backlog: records that a store has not got
    yet. Their number is shown if it is more than one batch, with the time until the store has
    caught up.

    On a terminal that is too narrow for all columns, those without content are left out.
    """
    done = for_each(options.platforms(), _status)
    rows = [
        {**done.named(source), **row, "backlog": listing.backlogs.get(str(row["store"]))}
        for source, listing in done.results.items()
        for row in listing.rows
    ]
    if not as_json:
        columns = dict.fromkeys(name for row in rows for name in row)
        rows = [_line({**columns, **row}) for row in rows]
    print_rows(rows, as_json=as_json, title="", empty="no view has applied anything yet")
    for source, listing in done.results.items():
        verification.print_paused(listing.paused)
        plan.print_building(listing.building)
        print_loads(listing.loads)
        print_backlogs(done.named(source).get("source"), listing.backlogs)
    done.end()


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of the listing for people: times as ages, without the store's backlog."""
    times = {"updated_at": "updated", "verified_at": "verified"}
    line = {times.get(name, name): value for name, value in row.items() if name != "backlog"}
    for given, name in times.items():
        line[name] = None if row[given] is None else _age(row[given])
    return {**line, "unexpected": _counts(row["unexpected"])}


def _age(time: str) -> str:
    age_s = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
    return f"{duration(max(0.0, age_s))} ago"


def print_backlogs(source: str | None, backlogs: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints how far each store is behind, and when it will have caught up."""
    for store, backlog in backlogs.items():
        rate, left_s = backlog["fewer_per_s"], backlog["left_s"]
        if left_s is not None:
            when = f"caught up in {duration(left_s)}"
        elif rate is None:
            when = "the rate is not known yet"
        else:
            when = f"not catching up, {-rate:,.0f} more each second"
        where = store if source is None else f"{source} in {store}"
        stderr.print(
            f"[dim]backlog[/] {escape(where)}: {counted(backlog['records'], 'record')}, {when}"
        )


def print_loads(loads: Iterable[Mapping[str, Any]]) -> None:
    """Prints how far the views are that are being loaded from their source."""
    for load in loads:
        expected, left_s = counted(load["rows_expected"], "row"), load["left_s"]
        when = "" if left_s is None else f", done in {duration(left_s)}"
        text = f"{load['view']}: {load['rows']:,} of about {expected}{when}"
        stderr.print(f"[dim]loading[/] {escape(text)}", soft_wrap=True)


class _Listing(NamedTuple):
    """The views of a source.

    Attributes:
        rows: Rows of the listing.
        paused: Why views are paused.
        building: Views and stores that are being filled for the first time.
        backlogs: By store; see `JobReport.backlogs`.
        loads: See `JobReport.loads`.
    """

    rows: list[dict[str, Any]]
    paused: list[Fault]
    building: list[ViewInStore]
    backlogs: Mapping[str, Mapping[str, Any]]
    loads: Sequence[Mapping[str, Any]]


def _status(platform: Platform) -> _Listing:
    paused = {view.name: view.fault for view in platform.views.bound().paused}
    report, waiting = platform.job_report, platform.views.waiting()
    records, unexpected = report.records(), report.unexpected()
    failing = {store: error["code"] for store, error in report.store_errors().items()}
    beside = next((error["code"] for error in report.attendant_errors().values()), "")
    apart = report.halted() | report.failing_derived()
    verified = {(each.view, str(each.store)): each for each in platform.views.verified()}
    rows: list[dict[str, Any]] = []
    for position in platform.views.positions():
        view_in_store = position.view, str(position.store)
        rows.append(
            {
                "view": position.view,
                "store": position.store,
                "state": "paused"
                if position.view in paused
                else apart.get(view_in_store) or failing.get(view_in_store[1], beside),
                "applied_through": str(position.applied_through),
                "updated_at": position.updated_at.isoformat(timespec="milliseconds"),
                **_verified(verified.get(view_in_store)),
                **records.get(view_in_store, _NO_RECORDS),
                **dict(
                    zip(("waiting", "unresolved"), waiting.get(view_in_store, (0, 0)), strict=True)
                ),
                "unexpected": unexpected.get(view_in_store, {}),
            }
        )
    rows += [
        {
            **dict.fromkeys(rows[0] if rows else ()),
            "view": view,
            "store": store,
            "state": "",
            "unexpected": counts,
        }
        for (view, store), counts in unexpected.items()
        if view_of(view) in platform.project.declarations.derived
    ]
    listed = {(row["view"], str(row["store"])) for row in rows}
    rows += [
        {
            **dict.fromkeys(rows[0] if rows else ()),
            "view": view,
            "store": store,
            "state": code,
            "unexpected": {},
        }
        for (view, store), code in apart.items()
        if (view, store) not in listed and view not in paused  # never there, or lost
    ]
    backlogs, loads = (report.backlogs(), report.loads()) if platform.job_runs() else ({}, [])
    return _Listing(rows, list(paused.values()), platform.building(), backlogs, loads)


@app.command("explain")
def explain_view(
    name: Annotated[str, typer.Argument(help="The view.")],
    *,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show how a view is maintained: its tables, keys, method and stores."""
    explanation = asdict(options.platform(name).views.explain(name))
    if as_json:
        print_json(explanation)
        return
    sinks, expectations = explanation.pop("sinks"), explanation.pop("expectations")
    for label, value in explanation.items():
        text = value if isinstance(value, str) else ", ".join(value) or "none"
        stdout().print(f"{label:<10}{text}", markup=False, soft_wrap=True)
    for store, lines in sinks.items():
        for number, line in enumerate(lines):
            stdout().print(f"{'' if number else store:<10}{line}", markup=False, soft_wrap=True)
    for number, line in enumerate(expectations):
        stdout().print(f"{'' if number else 'expects':<10}{line}", markup=False, soft_wrap=True)


@app.command("versions")
def versions(
    *,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """List the published versions that can be read, each at one transaction boundary.

    Example: headwater query "SELECT count(*) FROM orders" --as-of 0/1A2B3C
    """
    rows = [
        {
            **({"source": part.source.name} if part.shares_home else {}),
            "version": version.number,
            "applied_through": str(version.applied_through),
            "published_at": _time(version.published_at_us),
            "views": sum(
                (table.epoch, table.lsn) == (version.epoch, version.lsn)
                for table in version.views.values()
            ),
        }
        for part in options.parts()
        for version in Published(part.home.root / "tables", part.source.name).all()
    ]
    print_rows(rows, as_json=as_json, title="", empty="nothing is published yet")


@app.command("resume")
def resume(
    name: Annotated[str, typer.Argument(help="The view.")],
    *,
    options: ProjectOptions,
) -> None:
    """Resume a view with the present columns of its table, through a new snapshot of the table.

    Use it for a view that is paused because its table has changed, or one that keeps its columns
    (`quarantine`, `ignore`). Rows that no longer exist are removed after the snapshot.
    """
    plan = options.platform(name).views.resume(name)
    columns = ", ".join(column.name for column in plan.schema.columns)
    stderr.print(
        f"{name} continues with {escape(columns)}; a snapshot of {plan.schema.table} follows"
    )


def _verified(last: Verified | None) -> dict[str, Any]:
    """The position through which a view was verified last, and the number of wrong rows."""
    if last is None:
        return {"verified_through": None, "verified_at": None, "wrong": None}
    at = last.verified_at
    return {
        "verified_through": None if last.verified_through is None else str(last.verified_through),
        "verified_at": None if at is None else at.isoformat(timespec="milliseconds"),
        "wrong": last.missing + last.extra + last.different + last.quarantined,
    }


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds")
