"""Prints answers and errors."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape as without_markup
from rich.table import Table

from foundation.json_numbers import with_number_texts
from headwater.cli.hints import completed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from foundation.errors import PlatformError
    from projections.publishing.published_content import PublishedVersion

_WIDTH_MAX: Final = 2_000
_MINUTE_S: Final = 60
_ROUND_MIN: Final = 1.5
"""Minutes, and hours, below which the smaller unit is printed."""

_C1: Final = re.compile("[\x7f-\x9f]")

stderr = Console(stderr=True, highlight=False)


def stdout() -> Console:
    """Returns a console on the stdout of this moment, which tests may have replaced."""
    return Console(highlight=False)


def duration(seconds: float) -> str:
    """Returns a span of time for people, such as `40 s`, `12 min` or `3.5 h`."""
    minutes = seconds / _MINUTE_S
    if minutes < _ROUND_MIN:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 60 * _ROUND_MIN else f"{minutes / 60:.1f} h"


def counted(count: int, noun: str) -> str:
    """Returns a number of things for people, such as `1 row` or `1,200 rows`.

    Args:
        count: How many.
        noun: One of them.
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def visible(text: str) -> str:
    r"""Returns a text whose control characters, except line breaks, are spelled out: `\x1b`.

    Values of rows can contain sequences that a terminal obeys.
    """
    return "".join(
        ascii(char)[1:-1] if unicodedata.category(char) == "Cc" and char != "\n" else char
        for char in text
    )


def escape(text: str) -> str:
    """Returns a text that a console prints as it is, without markup or control characters."""
    return without_markup(visible(text))


def print_boundaries(versions: Mapping[str, PublishedVersion]) -> None:
    """Prints which version of each source a command has read, to stderr."""
    for source, version in versions.items():
        published = datetime.fromtimestamp(version.published_at_us / 1_000_000, UTC)
        at = published.isoformat(timespec="milliseconds")
        stderr.print(f"[dim]read {source} at {version.applied_through}, published {at}[/]")


def print_json(document: object) -> None:
    """Prints the one JSON document of a `--json` answer."""
    plain = with_number_texts(document)
    text = json.dumps(plain, default=str, ensure_ascii=False, allow_nan=False, indent=2)
    # JSON allows these in texts, and some terminals obey them
    sys.stdout.write(_C1.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    as_json: bool,
    title: str,
    empty: str,
    of_views: bool = False,
) -> None:
    """Prints a listing: a table for people, a JSON array for programs.

    Args:
        rows: Same keys in each; the keys become headings.
        as_json: Whether a program reads.
        title: Heading of the table.
        empty: Text printed if there are no rows.
        of_views: Whether keys and values are those of views: headings are the names of columns, and
            booleans are printed as SQL spells them.

    On a terminal that is too narrow, columns without content are left out, unless they are of
    views; if that does not suffice, each row is printed as a list.
    """
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        stderr.print(empty)
        return
    console = stdout()
    names = list(rows[0])
    if not console.is_terminal:  # a file, or another program, has no width to be cut to
        wide = Console(highlight=False, width=_WIDTH_MAX)
        wide.print(_table(rows, names, title=title, of_views=of_views))
        return
    table = _table(rows, names, title=title, of_views=of_views)
    if _cuts_words(console, table) and not of_views:
        names = [name for name in names if not all(_is_nothing(row[name]) for row in rows)]
        table = _table(rows, names, title=title, of_views=of_views)
    if _cuts_words(console, table):
        _print_one_by_one(console, rows, names, title=title, of_views=of_views)
    else:
        console.print(table)


def _table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], *, title: str, of_views: bool
) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in names:
        numeric = isinstance(rows[0][name], int | float) and not isinstance(rows[0][name], bool)
        heading = _heading(name, of_views=of_views)
        table.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*[_cell(row[name], of_views=of_views) for name in names])
    return table


def _cuts_words(console: Console, table: Table) -> bool:
    """Whether the terminal is too narrow for the table, even with its cells on several lines."""
    unlimited = console.options.update(width=_WIDTH_MAX)
    return console.measure(table, options=unlimited).minimum > console.width


def _print_one_by_one(
    console: Console,
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    title: str,
    of_views: bool,
) -> None:
    """Prints each row as a list of its columns, which fits any terminal."""
    if title:
        console.print(escape(title), style="italic")
    for number, row in enumerate(rows, 1):
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name in names:
            table.add_row(_heading(name, of_views=of_views), _cell(row[name], of_views=of_views))
        console.print(f"[dim]row {number}[/]")
        console.print(table)


def print_error(error: PlatformError, *, as_json: bool) -> None:
    """Prints an error: its message, its detail, and the command that repairs it.

    An example contains a row's values: it is printed for the user and never logged.
    """
    example: tuple[str, ...] = getattr(error, "example", ())
    if as_json:
        document = {
            "code": error.code,
            "message": error.message,
            "detail": error.detail,
            "hint": error.hint and completed(error.hint),
            "retriable": error.retriable,
        }
        print_json({"error": {**document, "example": list(example)} if example else document})
        return
    stderr.print(f"[bold red]error[/] [dim]{error.code}[/] {escape(error.message)}", soft_wrap=True)
    if error.detail:
        stderr.print(f"  [dim]seen[/]   {escape(error.detail)}", soft_wrap=True)
    if example:
        stderr.print(f"  [dim]such as[/] {escape(', '.join(example))}", soft_wrap=True)
    if error.hint:
        stderr.print(f"  [dim]repair[/] {escape(completed(error.hint))}", soft_wrap=True)


def _is_nothing(value: object) -> bool:
    return value is None or value == "" or (value == 0 and not isinstance(value, bool))


def _heading(name: str, *, of_views: bool) -> str:
    return escape(name if of_views else name.replace("_", " "))


def _cell(value: object, *, of_views: bool) -> str:
    if value is None:
        return "[dim]—[/]"
    if isinstance(value, bool):
        true, false = ("true", "false") if of_views else ("yes", "no")
        return true if value else false
    return escape(str(value))
