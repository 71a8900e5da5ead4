"""`headwater forget`: erases the values of a key everywhere, and issues a certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cdc.table import TableName
from foundation.errors import EXIT_UNHEALTHY
from headwater.cli.options import Json, SourceOptions, Yes
from headwater.cli.output import escape, print_json, print_rows, stderr
from headwater.cli.snapshot import key_of
from headwater.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.erasure.certificate import Certificate


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("forget")(forget)


def forget(
    table: Annotated[str, typer.Argument(help="The table, such as public.customers or customers.")],
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY...",
            help='The key; a composite key as JSON: \'{"tenant": 1, "id": 7}\'.',
        ),
    ],
    *,
    row_stays: Annotated[
        bool,
        typer.Option("--row-stays", help="The row was overwritten; keep its present values."),
    ] = False,
    yes: Yes = False,
    options: SourceOptions,
    as_json: Json = False,
) -> None:
    """Erase past values of rows: archive, topics, all view versions, search, cache, files.

    Delete the rows in the source first, or overwrite them and give --row-stays. Topics are
    truncated after the last change of the rows, so every reader of the topics must have read that
    far. The command ends with a certificate: the items erased in each store, and the result of a
    search through all files for values that only these rows had. Exits 3 if it finds one, or if a
    step is not done.

    Example: headwater forget customers 17 --yes
    """
    if not yes:
        raise UsageError(
            "forgotten values cannot be restored, not even by a rebuild",
            hint="add --yes to confirm",
        )
    # many of the platform's parts, which the other commands need not load
    from headwater.operations.erase_rows import RowErasure  # noqa: PLC0415

    platform = options.platform()
    forgetting = RowErasure(
        platform, TableName.parse(table), lambda step: stderr.print(escape(step), soft_wrap=True)
    )
    certificate, path = forgetting.forget([key_of(text) for text in key], row_stays=row_stays)
    _print(certificate, path, as_json=as_json)
    if not certificate.complete:
        raise typer.Exit(EXIT_UNHEALTHY)


def _print(certificate: Certificate, path: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({**msgspec.to_builtins(certificate), "complete": certificate.complete})
        return
    rows = [
        {
            "place": each.place,
            "erased": f"{each.count:,} {each.what}",
            "done": "yes" if each.complete else "not yet",
        }
        for each in certificate.erased
    ]
    print_rows(rows, as_json=False, title="", empty="nothing was erased")
    matching_files = certificate.found_in
    if certificate.values_searched:
        stderr.print(
            f"{certificate.values_searched} values that only these rows had: "
            + (f"found in {len(matching_files)} files" if matching_files else "found in no file")
            + f" of {certificate.files_searched:,}"
        )
    for name in matching_files[:10]:
        stderr.print(f"  {escape(name)}", soft_wrap=True)
    for copies in certificate.beyond_reach:
        stderr.print(f"[dim]not reached[/] {escape(copies)}", soft_wrap=True)
    stderr.print(f"certificate: {escape(str(path))}", soft_wrap=True)
