"""Options that many commands share, and commands whose parameters are groups of options."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from headwater.cli.hints import set_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headwater.platform.database import Database
    from headwater.platform.platform import Platform
    from headwater.project.project import Project


@dataclass(frozen=True, kw_only=True)
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

    @property
    def chosen(self) -> str | None:
        """Name of the source that an option chooses."""
        return None

    def project(self) -> Project:
        """Opens the project with all its sources.

        Raises:
            SettingsError: The settings cannot be used.
            UsageError: The project does not declare a source.
        """
        return self._project

    @cached_property
    def _project(self) -> Project:
        from headwater.project.project import open_project  # noqa: PLC0415

        return open_project(self.config, home=self.home, profile=self.profile)

    def parts(self) -> tuple[Project, ...]:
        """Opens the part of each source; only that of the chosen one if there is one."""
        return self.project().parts if self.chosen is None else (self.part(),)

    def part(self, view: str | None = None) -> Project:
        """Opens the part of one source: the chosen one, that of a view, or the only one.

        Raises:
            UsageError: There are several sources, and none of these chooses one.
        """
        project = self.project()
        if self.chosen is None and view is not None:
            part = project.part_of(view)
        else:
            part = project.part(self.chosen or project.source.name)
        set_source(part.source.name if part.shares_home else None)
        return part

    def platform(self, view: str | None = None) -> Platform:
        """Opens the part of one source with its servers and stores; see `part`."""
        from headwater.platform.platform import Platform  # noqa: PLC0415  # needs the extra

        return Platform(self.part(view), self.settings_file())

    def platform_of(self, source: str) -> Platform:
        """Opens the part of a source with its servers and stores.

        Raises:
            UsageError: No such source is declared.
        """
        from headwater.platform.platform import Platform  # noqa: PLC0415  # needs the extra

        return Platform(self.project().part(source), self.settings_file())

    def platforms(self, views: Iterable[str] = ()) -> list[Platform]:
        """Opens the parts of all sources, or only those that have one of some views."""
        from headwater.platform.platform import Platform  # noqa: PLC0415  # needs the extra

        named = {self.part(view).source.name for view in views}
        return [
            Platform(part, self.settings_file())
            for part in self.parts()
            if not named or part.source.name in named
        ]

    def home_folder(self) -> Path:
        """Returns the folder of all state; opens the project only where no option names it."""
        return self.home or self.project().settings.home


@dataclass(frozen=True, kw_only=True)
class SourceOptions(ProjectOptions):
    """Options that choose a project, and a source in it."""

    source: Annotated[
        str | None,
        typer.Option("--source", help="One source of a project that has several."),
    ] = None

    @property
    def chosen(self) -> str | None:
        """Name of the source that an option chooses."""
        return self.source


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class LogOptions(DatabaseOptions):
    """Options that choose the events of a tenant in a database."""

    tenant: Annotated[
        str | None, typer.Option("--tenant", help="The tenant; default: from the settings.")
    ] = None


class Commands(typer.Typer):
    """Commands whose parameters may be groups of options, such as `ProjectOptions`."""

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
"""The default wait of applications too; see `projections.publishing.read_barrier`."""
