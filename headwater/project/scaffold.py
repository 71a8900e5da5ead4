"""`headwater init`: from a user's database to a project that runs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.postgres import address, session
from foundation.disk import free_bytes
from headwater.errors import UsageError
from headwater.project.settings import dotenv
from headwater.project.spelling import PROJECT_LENGTH_MAX, SOURCE_LENGTH_MAX, identifier, printable
from headwater.project.survey import EXCLUDED, NOT_ASKED, DatabaseSurvey, TableSelection, survey
from headwater.project.views_text import views_text

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS = """\
# Settings of this project; `headwater doctor` checks what they point to.
# What is not named here runs locally, on loopback, started by `headwater up`.

[project]
name = "{name}"
views = "views.py"

[source.{source}]
dsn = "${{{variable}}}"        # kept in .env beside this file, or in the environment

# Servers that already run are used by their address:
# [services.kafka]
# address = "broker.example:9092"
# [services.connect]
# address = "http://connect.example:8083"
# [services.search]
# address = "http://search.example:9200"
# [services.cache]
# address = "redis://cache.example:6379/0"

# [spark]
# master = "local[4]"
"""

_IGNORED = (".env", ".headwater/")


@dataclass(frozen=True, slots=True)
class Draft:
    """A project that can be written.

    Attributes:
        folder: Where.
        dsn: The database, with what the environment adds to its address; has the password.
        survey: What is chosen of the database.
    """

    folder: Path
    dsn: str
    survey: DatabaseSurvey

    def __repr__(self) -> str:
        return f"Draft({self.folder}, {self.survey.source})"


def draft(folder: Path, dsn: str, name: str, wanted: TableSelection | None = None) -> Draft:
    """Looks into a database and chooses what to mirror of it; writes nothing.

    Args:
        folder: Where the project will be.
        dsn: The database.
        name: Name of the source and the project; made to fit.
        wanted: Which tables are asked for; all if left out.

    Raises:
        UsageError: The folder holds a project already, or no table can be mirrored.
        PostgresError: The database cannot be reached; each cause has its own code.
    """
    for file in _files(folder):
        if file.exists():
            raise UsageError(f"{file} already exists", hint="choose another folder")
    return drafted(folder, dsn, identifier(name, SOURCE_LENGTH_MAX, "db"), wanted)


def drafted(folder: Path, dsn: str, source: str, wanted: TableSelection | None = None) -> Draft:
    """Looks into a database and chooses what to mirror of it as a source; see `draft`."""
    with session.connect(dsn) as connection:
        kept = address.completed(dsn, connection)
        found = survey(connection, dsn, source, wanted or TableSelection(), free_bytes(folder))
    if not found.choices:
        raise UsageError(
            "the database has no tables", hint=("create a table, or check the database's name")
        )
    if not found.mirrored:
        reasons = [f"{reason}: {len(choices)}" for reason, choices in found.by_reason()]
        raise UsageError(
            "no table of the database can be mirrored", detail="; ".join(map(printable, reasons))
        )
    return Draft(folder, kept, found)


def write(drafted: Draft) -> list[Path]:
    """Writes a project; returns its files.

    Raises:
        UsageError: A file is there by now.
    """
    folder, source = drafted.folder, drafted.survey.source
    settings, views, secrets = _files(folder)
    variable = f"{source.upper()}_DSN"
    project = source[:PROJECT_LENGTH_MAX].strip("_").replace("_", "-")
    folder.mkdir(parents=True, exist_ok=True)
    _write_new(settings, _SETTINGS.format(name=project, source=source, variable=variable))
    _write_new(views, views_text(drafted.survey))
    _write_new(secrets, dotenv.line(variable, drafted.dsn), mode=0o600)
    ignore(folder / ".gitignore")
    return [settings, views, secrets]


def create(folder: Path, dsn: str, name: str, wanted: TableSelection | None = None) -> list[str]:
    """Looks into a database and writes a project for it; see `draft` and `write`.

    Returns:
        What was written and what was noticed, one line each.
    """
    drafted = draft(folder, dsn, name, wanted)
    return [f"wrote {file}" for file in write(drafted)] + remarks(drafted.survey)


def remarks(found: DatabaseSurvey) -> list[str]:
    """Returns what has to be known of tables, a line each."""
    lines = [f"{choice.table} {note}" for choice in found.mirrored for note in choice.notes]
    lines += [
        f"{choice.table} is not mirrored: {choice.reason}"
        for choice in found.left_out
        if choice.reason not in {EXCLUDED, NOT_ASKED}
    ]
    return [printable(line) for line in lines]


def _files(folder: Path) -> tuple[Path, Path, Path]:
    return folder / "headwater.toml", folder / "views.py", folder / ".env"


def _write_new(file: Path, text: str, mode: int = 0o666) -> None:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise UsageError(f"{file} already exists", hint="choose another folder") from None
    with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as opened:
        opened.write(text)


def ignore(file: Path) -> None:
    """Keeps secrets and state out of a repository."""
    there = file.read_text("utf-8") if file.is_file() else ""
    lacking = [name for name in _IGNORED if name not in there.splitlines()]
    if lacking:
        between = "\n" if there and not there.endswith("\n") else ""
        with file.open("a", encoding="utf-8") as opened:
            opened.write(between + "".join(f"{name}\n" for name in lacking))
