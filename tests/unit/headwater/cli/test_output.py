"""Values of rows are printed as they are, and no terminal obeys them."""

from __future__ import annotations

import json

import pytest

from headwater.cli.output import print_error, print_json, print_rows, visible
from headwater.errors import UsageError

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
