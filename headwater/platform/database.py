"""Which database a command works on: named by itself, by the settings, or the project's source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import UnhealthyError, UsageError
from headwater.platform.platform import Platform
from headwater.project.project import open_project, settings_file
from headwater.project.settings import EventStoreSettings, load

if TYPE_CHECKING:
    from headwater.project.project import Project


@dataclass(frozen=True, slots=True, repr=False)
class Database:
    """A database with an event store, or for one.

    Attributes:
        dsn: How it is reached; never shown.
        settings: Section `[eventstore]`; defaults where there is no settings file.
        root: Folder that paths in the settings start from.
    """

    dsn: str
    settings: EventStoreSettings
    root: Path

    @property
    def keys_dsn(self) -> str:
        """Where the keys of subjects are."""
        apart = self.settings.keys_dsn
        return self.dsn if apart is None else apart.get_secret_value()


def find_database(
    dsn: str | None = None,
    *,
    config: Path | None = None,
    home: Path | None = None,
    profile: str | None = None,
) -> Database:
    """Finds the database; reads settings and starts nothing.

    Args:
        dsn: The database, if the command names it; then no settings file is needed.
        config: See `open_project`.
        home: See `open_project`.
        profile: See `open_project`.

    Raises:
        UsageError: Nothing names a database.
        SettingsError: The settings file cannot be used.
        UnhealthyError: It is the local Postgres, which does not run.
        PlatformMissingError: It is the local Postgres, which is not installed.
    """
    path = settings_file(config, home=home)
    if config is None and not path.is_file():
        if dsn is None:
            raise UsageError(
                "no database is named",
                detail=f"neither --dsn nor the settings file {path} is given",
                hint="--dsn postgresql://user:password@host/name",
            )
        return Database(dsn, EventStoreSettings(), Path.cwd())
    settings = load(path, home=home, profile=profile)
    if dsn is None and settings.eventstore.dsn is not None:
        dsn = settings.eventstore.dsn.get_secret_value()
    if dsn is None:
        project = open_project(config, home=home, profile=profile)
        dsn = _source_dsn(_with_event_store(project), path)
    return Database(dsn, settings.eventstore, settings.root)


def find_home(config: Path | None, *, home: Path | None, profile: str | None) -> Path:
    """Returns the folder of all state, also where nothing but an event store is used.

    Args:
        config: See `open_project`.
        home: See `open_project`.
        profile: See `open_project`.

    Raises:
        UsageError: Nothing names one.
    """
    path = settings_file(config, home=home)
    if config is not None or path.is_file():
        return load(path, home=home, profile=profile).home
    if home is None:
        raise UsageError("no home folder is given", hint="use --home FOLDER, or a settings file")
    return home


def _with_event_store(project: Project) -> Project:
    """The part of the source with the event store.

    Raises:
        UsageError: Several sources have one, or none of several.
    """
    found = [part for part in project.parts if part.source.eventstore]
    if len(project.parts) == 1 or len(found) == 1:
        return (found or project.parts)[0]
    raise UsageError(
        f"{len(found)} of {len(project.parts)} sources have an event store",
        hint="--dsn postgresql://user:password@host/name, or eventstore.dsn in the settings",
    )


def _source_dsn(project: Project, path: Path) -> str:
    external = project.settings.for_source(project.source.name).dsn
    if external is not None:  # the event store alone is enough for that
        return external.get_secret_value()
    platform = Platform(project, path)
    if not platform.running():
        raise UnhealthyError("the local Postgres does not run", hint="headwater up")
    return platform.source_dsn
