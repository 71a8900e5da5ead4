"""What `headwater init` and `headwater up` print about many tables at once."""

from __future__ import annotations

import pytest

from cdc.snapshot.report import ReadReport
from cdc.table import TableName
from headwater.cli import init, services
from headwater.project.survey import Choice, DatabaseSurvey

MEASURED_S = {16: 26, 400: 100}  # docs/your-database.md: tables, seconds until all views are there
REASON = "has no primary key"


def left_out(number: int, repair: str) -> Choice:
    return Choice(TableName("public", f"t{number}"), 0, 8192).without(REASON, repair)


def test_statements_that_differ_by_table_are_all_in_the_preview(
    capsys: pytest.CaptureFixture[str],
) -> None:
    choices = [left_out(number, f"ALTER TABLE t{number};") for number in range(8)]
    init._show_left_out(REASON, choices, everything=True)
    shown = capsys.readouterr().err
    assert all(f"repair ALTER TABLE t{number};" in shown for number in range(8))

    init._show_left_out(REASON, choices, everything=False)
    shown = capsys.readouterr().err
    assert 1 == shown.count("ALTER TABLE")
    assert "and 7 more statements, one for each table; --dry-run shows them" in shown


def test_a_remedy_that_all_tables_share_is_printed_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    choices = [left_out(number, "add a primary key") for number in range(8)]
    init._show_left_out(REASON, choices, everything=True)
    shown = capsys.readouterr().err
    assert 1 == shown.count("add a primary key")
    assert "more statements" not in shown


@pytest.mark.parametrize("tables", MEASURED_S)
def test_the_estimate_of_a_first_load_grows_with_the_tables_as_measured(
    tables: int, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = tuple(Choice(TableName("public", f"t{each}"), 0, 8192) for each in range(tables))
    found = DatabaseSurvey("shop", choices)
    init._show_load(found)

    assert MEASURED_S[tables] == pytest.approx(init._load_s(found), rel=0.1)
    assert "a rough estimate" in capsys.readouterr().err


def test_many_tables_that_are_read_by_one_look_are_one_line() -> None:
    said: list[str] = []
    tell = services._progress_printer(said.append)
    read = [
        ReadReport(number, f"public.t{number}", state="done", rows_read=20) for number in range(9)
    ]
    reading = ReadReport(9, "public.large", state="reading", rows_read=7, percent=2.5)
    tell([*read, reading])
    tell([*read, reading])
    assert 2 == len(said)
    assert "9 tables done, 180 rows: public.t0, public.t1, public.t2 and 6 more" in said[0]
    assert "public.large reading, 7 rows (2.5 %)" in said[1]

    tell([*read, ReadReport(9, "public.large", state="done", rows_read=100)])
    assert "public.large done, 100 rows" in said[-1]
    assert 3 == len(said)
