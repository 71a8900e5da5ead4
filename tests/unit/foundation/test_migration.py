"""Migrations: a released one is never edited, and a folder gives them in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.postgres import own_schema
from eventstore.postgres import schema
from foundation.migration import FUNCTIONS, Migration, MigrationHistory, migrations_in

if TYPE_CHECKING:
    from pathlib import Path

RELEASED = {
    ("cdc", "0001_capture"): "a6a6cb5eb159050d",
    ("cdc", "0002_escaped_topics"): "bbda1f84536d1972",
    ("projections", "0001_views"): "50e0c8cbc321d5a3",
    ("eventstore", "0001_event_store"): "2dd55a86c1e2c2e0",
    ("eventstore", "0002_failures"): "15980e57a47c742f",
    ("eventstore", "0003_locks"): "597e709e39e01f28",
    ("eventstore", "0004_tables"): "b82eb0aee0ff673e",
    ("eventstore", "0005_mark"): "8d4b1033d02ab2f5",
    ("eventstore", "0006_reactors"): "b8c1609559b6ef04",
}
"""How each digest begins. Databases record them: an edit is a new migration, with a line here."""


def test_a_migration_that_was_released_is_as_it_was() -> None:
    known = [
        *own_schema.MIGRATIONS,
        *migrations_in(schema.folder(), "eventstore"),
    ]
    found = {each.key: each.digest[:16] for each in known if each.name != FUNCTIONS}

    assert found == RELEASED


def test_files_and_folders_run_by_number_and_functions_last(tmp_path: Path) -> None:
    (tmp_path / "0010_ten.sql").write_text("ten;\n")
    folder = tmp_path / "0002_two"
    folder.mkdir()
    (folder / "20_b.sql").write_text("b;\n")
    (folder / "10_a.sql").write_text("a;\n")
    (tmp_path / "functions.sql").write_text("f;\n")
    (tmp_path / "notes.txt").write_text("no migration")

    assert [
        Migration("p", "0002_two", "a;\nb;"),
        Migration("p", "0010_ten", "ten;"),
        Migration("p", "functions", "f;"),
    ] == migrations_in(tmp_path, "p")


def test_pending_and_unknown_are_told_by_name_and_digest() -> None:
    one, functions = Migration("p", "0001_one", "x"), Migration("p", FUNCTIONS, "y")
    history = MigrationHistory("s", (one, functions))
    done = {one.key: one.digest, functions.key: functions.digest}

    assert [one, functions] == history.pending({})
    assert [] == history.pending(done)
    assert [] == history.pending({one.key: None, functions.key: None})  # ran before the record
    assert [functions] == history.pending(done | {functions.key: "0"})
    assert ([], ["0001_one"]) == (history.unknown(done), history.unknown(done | {one.key: "0"}))
    assert ["0009_later"] == history.unknown(done | {("p", "0009_later"): "0"})
