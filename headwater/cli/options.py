"""Options that many commands share, and commands whose parameters are groups of options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.platform.database import Database
    from headwater.platform.platform import Platform
    from headwater.project.project import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectOptions:
    """Options that choose a project: a command with a parameter of this type has them all."""

    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="Settings file; default: headwater.toml in this folder."
        ),
    ] = None
    home: Annotated[
        Path | None,
        typer.Option("--home", help="Home folder; default: .headwater beside the settings file."),
    ] = None
    profile: Annotated[
        str | None, typer.Option("--profile", help="Profile of the settings file to apply.")
    ] = None

    def settings_file(self) -> Path:
        """Returns the settings file; it need not exist."""
        from headwater.project.project import settings_file  # noqa: PLC0415

        return settings_file(self.config, home=self.home)

    def project(self) -> Project:
        """Opens the project.

        Raises:
            SettingsError: The settings cannot be used.
            UsageError: The project does not declare one source.
        """
        from headwater.project.project import open_project  # noqa: PLC0415

        return open_project(self.config, home=self.home, profile=self.profile)

    def platform(self) -> Platform:
        """Opens the project with its servers and stores; see `project`."""
        from headwater.platform.platform import Platform  # noqa: PLC0415  # needs the extra

        return Platform(self.project(), self.settings_file())

    def home_folder(self) -> Path:
        """Returns the folder of all state; opens the project only where no option names it."""
        return self.home or self.project().settings.home


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseOptions(ProjectOptions):
    """Options that choose a database: by its DSN, or by a project."""

    dsn: Annotated[
        str | None,
        typer.Option(
            "--dsn", help="The event store's database; default: from the settings, or the source."
        ),
    ] = None

    def database(self) -> Database:
        """Finds the database; see `find_database`."""
        from headwater.platform.database import find_database  # noqa: PLC0415

        return find_database(self.dsn, config=self.config, home=self.home, profile=self.profile)

    def event_store(self) -> Database:
        """Finds a database with the event store that this code works with; see `find_store`."""
        from headwater.operations.events import find_store  # noqa: PLC0415

        return find_store(self.dsn, config=self.config, home=self.home, profile=self.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(DatabaseOptions):
    """Options that choose the events of a tenant in a database."""

    tenant: Annotated[
        str | None, typer.Option("--tenant", help="The tenant; default: from the settings.")
    ] = None


class Commands(typer.Typer):
    """Commands, of which a parameter may be a group of options, such as `ProjectOptions`."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        """Adds a command; see `typer.Typer.command`. Returns the function as it was."""
        add = super().command(*args, **kwargs)

        def added(function: Callable[..., Any]) -> Callable[..., Any]:
            add(_expanded(function))
            return function

        return added


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function with one parameter for each option of the groups that it takes."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, type[Any]] = {
        name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)
    }
    parameters = [
        each.replace(annotation=hints[each.name])
        for each in inspect.signature(function).parameters.values()
    ]

    @wraps(function)
    def command(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        return function(**given)

    expanded = [
        option
        for each in parameters
        for option in (_options(groups[each.name]) if each.name in groups else [each])
    ]
    positional = [each for each in expanded if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    named = [each for each in expanded if each.kind is inspect.Parameter.KEYWORD_ONLY]
    vars(command)["__signature__"] = inspect.Signature([*positional, *named])
    command.__annotations__ = {each.name: each.annotation for each in expanded}
    return command


def _options(group: type[Any]) -> list[inspect.Parameter]:
    """Returns the options of a group, those that it adds to another first."""
    hints = get_type_hints(group, include_extras=True)
    names = [name for kind in group.__mro__[:-1] for name in inspect.get_annotations(kind)]
    defaults = {each.name: each.default for each in fields(group)}
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults[name],
            annotation=hints[name],
        )
        for name in names
    ]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document to stdout.")]
Yes = Annotated[bool, typer.Option("--yes", help="Confirm; this cannot be undone.")]
AtLeast = Annotated[
    str | None,
    typer.Option(
        "--at-least",
        help="A position token: wait for everything that it covers.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.0, help="Maximum wait for --at-least, in seconds."),
]
TIMEOUT_S = 5.0
"""As an application waits where it says nothing; see `projections.publishing.read_barrier`."""
