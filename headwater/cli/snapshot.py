"""`headwater source resnapshot`, and the listing of reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.snapshot import report, request
from cdc.table import TableName
from headwater.cli.options import Json, SourceOptions
from headwater.cli.output import counted, duration, escape, print_json, print_rows, stderr
from headwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.capture import CaptureSpec
    from cdc.snapshot.reads import Read
    from cdc.snapshot.report import ReadReport


def resnapshot(
    table: Annotated[
        str | None, typer.Argument(help="The table, such as public.orders or orders.")
    ] = None,
    *,
    key: Annotated[
        list[str] | None,
        typer.Option(
            "--key",
            help='Read only this key; repeatable. A composite key as JSON: \'{"tenant": 1, "id": '
            "7}'. A key without a row is sent as a delete.",
        ),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="Read only rows that meet this SQL condition.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until every row is sent.")] = False,
    wait_s: Annotated[
        float, typer.Option("--wait-s", min=1, help="Maximum wait in seconds.")
    ] = 86_400.0,
    cancel: Annotated[
        int | None,
        typer.Option("--cancel", metavar="ID", help="Cancel the snapshot with this number."),
    ] = None,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Take a new snapshot of a captured table, or of some of its rows, while streaming continues.

    Snapshot rows carry the snapshot's position: they correct the views and never replace a later
    change. After a snapshot of the whole table, views remove rows that no longer exist.
    """
    if (table is None) == (cancel is None):
        raise UsageError("name a table, or a snapshot to cancel", hint="headwater source status")
    spec = _spec(options)
    if cancel is not None:
        _print(request.cancel(spec, cancel), as_json=as_json, text=f"read {cancel} is cancelled")
        return
    keys = [key_of(text) for text in key] if key else None
    asked = request.ask(spec, TableName.parse(table or ""), keys=keys, where=where)
    for change in asked.changes:
        stderr.print(escape(change))
    if not asked.new:
        stderr.print("the same read is waiting already")
    read = asked.read
    if wait:
        read = request.wait(spec, read.id, wait_s, _progress_printer())
    _print(read, as_json=as_json, text=_sentence(read))


def print_reads(reports: Sequence[ReadReport]) -> None:
    """Prints the progress of reads as a table."""
    rows = [row_of(line) for line in reports]
    print_rows(rows, as_json=False, title="", empty="no table is captured")
    for line in reports:
        if line.failure:
            stderr.print(f"{escape(line.table)}: {escape(line.failure)}", soft_wrap=True)


def row_of(line: ReadReport) -> dict[str, object]:
    """Returns a line of that table."""
    table = line.table if line.what == "table" else f"{line.table} ({line.what})"
    expected = f"{line.rows_expected:,}" if line.rows_expected is not None else "?"
    rows = f"{line.rows_read:,}" if line.state == "done" else f"{line.rows_read:,} of {expected}"
    return {
        "read": line.id,
        "table": table,
        "state": line.state,
        "rows": rows if line.id is not None else None,
        "percent": f"{line.percent:g} %" if line.percent is not None else None,
        "rows/s": f"{line.rows_per_s:,.0f}" if line.rows_per_s else None,
        "left": None if line.remaining_s is None else duration(line.remaining_s),
    }


def documents(reports: Sequence[ReadReport]) -> list[dict[str, Any]]:
    """Returns the reads as JSON documents."""
    return [asdict(line) for line in reports]


def _print(read: Read, *, as_json: bool, text: str) -> None:
    if as_json:
        print_json(asdict(report.of_read(read, read.ended_at or read.asked_at)))
    else:
        typer.echo(text)


def _sentence(read: Read) -> str:
    if read.done:
        return (
            f"read {read.id}: {counted(read.rows_read, 'row')} of {read.table} at {read.read_lsn}"
        )
    return f"read {read.id} of {read.table} is {read.state}; headwater source status shows it"


def _progress_printer() -> Any:
    printed: list[str] = []

    def show_progress(read: Read) -> None:
        text = read.failure or f"{read.state}, {counted(read.rows_read, 'row')}"
        if printed != [text]:
            printed[:] = [text]
            stderr.print(escape(text), soft_wrap=True)

    return show_progress


def key_of(text: str) -> object:
    """Returns a key of the command line: a value, or the columns as JSON."""
    if text[:1] not in "{[":
        return text
    try:
        return json.loads(text, parse_int=str, parse_float=str)  # no digit is lost
    except json.JSONDecodeError:
        return text  # a text may begin so, too; the column's type refuses anything else


def _spec(options: SourceOptions) -> CaptureSpec:
    platform = options.platform()
    return platform.capture_spec()
