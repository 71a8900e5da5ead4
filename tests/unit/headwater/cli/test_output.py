"""Values of rows are printed as they are, and no terminal obeys them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from headwater.cli.output import print_error, print_json, print_rows, visible
from headwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

CLIPBOARD = "\x1b]52;c;aGk=\x07"
"""A sequence with which a row writes to the clipboard of its reader."""
ROWS = [{"placed_at": f"[bold]{CLIPBOARD}", "[red]paid": True, "a\x9b31m": None}]


@pytest.mark.parametrize("of_views", [True, False])
def test_a_table_obeys_no_value(capsys: pytest.CaptureFixture[str], of_views: bool) -> None:
    print_rows(ROWS, as_json=False, title="", empty="", of_views=of_views)
    printed = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\x9b"} & set(printed)
    assert r"[bold]\x1b]52;c;aGk=\x07" in printed
    assert "[red]paid" in printed
    assert r"a\x9b31m" in printed


def test_a_query_has_the_names_of_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"placed_at": "today", "is_paid": False}]
    print_rows(rows, as_json=False, title="", empty="", of_views=True)
    assert ["placed_at", "is_paid", "today", "false"] == capsys.readouterr().out.split()
    print_rows(rows, as_json=False, title="", empty="")
    assert ["placed", "at", "is", "paid", "today", "no"] == capsys.readouterr().out.split()


def test_json_and_errors_obey_no_value(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"a": f"é{CLIPBOARD}\x9b31m\x7f\n"}
    print_json(values)
    printed = capsys.readouterr().out
    assert values == json.loads(printed)
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(printed)
    assert "é" in printed

    print_error(UsageError(CLIPBOARD, detail=CLIPBOARD, hint=CLIPBOARD), as_json=False)
    said = capsys.readouterr().err
    assert r"\x1b]52" in said
    assert not {"\x1b", "\x07"} & set(said)


def test_line_breaks_stay() -> None:
    assert "a\nb\\tc\\rd é 日本 🙂" == visible("a\nb\tc\rd é 日本 🙂")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def of_width(columns: int) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", str(columns))

    return of_width


def lines_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


LISTED = [
    {"view": name, "state": "", "applied_through": "0/1F52308", "wrong": 0, "active": False}
    for name in ("customers_0", "customers_1")
]


@pytest.mark.parametrize(
    ("columns", "printed"),
    [
        (
            60,
            """
            view         state  applied through  wrong  active
            customers_0         0/1F52308            0  no
            customers_1         0/1F52308            0  no
            """,
        ),
        (
            37,
            """
            view         applied through  active
            customers_0  0/1F52308        no
            customers_1  0/1F52308        no
            """,
        ),
        (
            28,
            """
            row 1
            view             customers_0
            applied through  0/1F52308
            active           no
            row 2
            view             customers_1
            applied through  0/1F52308
            active           no
            """,
        ),
    ],
)
def test_a_narrow_terminal_cuts_no_word(
    terminal: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
    columns: int,
    printed: str,
) -> None:
    terminal(columns)
    print_rows(LISTED, as_json=False, title="", empty="")
    lines = [line.strip() for line in lines_of(capsys)]
    assert [line.strip() for line in printed.strip().splitlines()] == lines


def test_columns_of_views_stay_on_a_narrow_terminal(
    terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    terminal(32)
    print_rows(LISTED[:1], as_json=False, title="", empty="", of_views=True)
    first, *lines = lines_of(capsys)
    assert "row 1" == first
    assert list(LISTED[0]) == [line.split()[0] for line in lines]
