"""`headwater source repair`: recreates a capture that has lost changes."""

from __future__ import annotations

import typer

from cdc import source as capture
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, SourceOptions, Yes
from headwater.cli.output import escape, print_json, stderr


def repair(
    *,
    yes: Yes = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Recover from lost changes: recreate the slot, start a new epoch, snapshot every table.

    Without --yes, only shows what would be done, and exits 3 if a repair is needed. Captured
    records stay. Rows that were deleted meanwhile are removed once their table has been
    snapshotted.
    """
    platform = options.platform()
    if not yes:
        _show(platform.plan_repair(), as_json=as_json)
        return
    done = platform.repair(lambda step: stderr.print(escape(step), soft_wrap=True))
    if as_json:
        print_json({"done": done})
    stderr.print("recaptured; headwater source status shows how far the tables are read")


def _show(plan: capture.RepairPlan, *, as_json: bool) -> None:
    loss = plan.loss
    if as_json:
        print_json(
            {
                "loss": None if loss is None else loss.document(),
                "epoch": plan.epoch,
                "becomes": plan.becomes,
                "steps": list(plan.steps),
            }
        )
    else:
        if loss is None:
            stderr.print("no change is missing, as far as can be seen")
        else:
            stderr.print(f"[bold red]lost[/] [dim]{loss.code}[/] {escape(loss.message)}")
        for step in plan.steps:
            stderr.print(f"  will {escape(step)}", soft_wrap=True)
        stderr.print("  [dim]repair[/] headwater source repair --yes")
    if loss is not None:
        raise typer.Exit(EXIT_UNHEALTHY)
