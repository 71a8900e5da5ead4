"""`headwater trace`: one row on its way, from its commits to each store."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, ProjectOptions
from headwater.cli.output import print_json, print_rows, stderr

if TYPE_CHECKING:
    from projections.verification.trace import LoggedChange, StoredRow, Trace


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("trace")(trace_row)


def trace_row(
    view: Annotated[str, typer.Argument(help="The view.")],
    key: Annotated[list[str], typer.Argument(help="The row's key, one value for each column.")],
    *,
    last: Annotated[int, typer.Option(min=1, help="Number of changes to show.")] = 10,
    options: ProjectOptions,
    as_json: Json = False,
) -> None:
    """Show a row at each stage: its commits, their log positions, and its state in each store.

    Exits 3 if a store does not have the newest change. Example: headwater trace orders 17
    """
    trace = options.platform(view).views.trace(view, key, last)
    changes = [_change(each) for each in trace.changes]
    stores = [_store(each) for each in trace.stores]
    if as_json:
        print_json({"view": trace.view, "key": trace.key, "changes": changes, "stores": stores})
    else:
        print_rows(changes, as_json=False, title="changes", empty="the log has no change of it")
        stderr.print()
        print_rows(stores, as_json=False, title="stores", empty="the view lives in no store")
    if _lacking(trace):
        raise typer.Exit(EXIT_UNHEALTHY)


def _lacking(trace: Trace) -> bool:
    return bool(trace.changes) and any(each.state != "has it" for each in trace.stores)


def _change(change: LoggedChange) -> dict[str, Any]:
    return {
        "committed_at": _time(change.committed_at_us),
        "position": str(change.position),
        "operation": change.operation,
        "transaction": change.transaction_id,
        "topic": change.topic,
        "partition": change.partition,
        "offset": change.offset,
        "archived": change.archived,
    }


def _store(stored: StoredRow) -> dict[str, Any]:
    return {
        "store": str(stored.store),
        "state": str(stored.state),
        "position": None if stored.position is None else str(stored.position),
        "applied_through": None if stored.applied_through is None else str(stored.applied_through),
        "batch": stored.batch,
        "waiting": stored.waiting,
        "cause": stored.cause,
    }


def _time(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds")
