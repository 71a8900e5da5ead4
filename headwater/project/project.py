"""A project: its settings and what its module declares."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.atomic_file import write_atomically
from foundation.suggestion import did_you_mean
from headwater.errors import UsageError
from headwater.project import added_text
from headwater.project.settings import DEFAULT_FILE, HOME_FOLDER, load
from headwater.project.sources import check
from headwater.runtime.home import Home, read_json
from projections.definition.registry import load as load_declarations

if TYPE_CHECKING:
    from headwater.project.settings import Settings
    from projections.definition.cross_reads import CrossReads
    from projections.definition.registry import Declarations
    from projections.definition.views import DerivedView, Source, View

EXAMPLE = Path(__file__).parents[2] / "examples" / "globalshop" / DEFAULT_FILE
"""GlobalShop, which ships with the package."""

_REMEMBERED = "project.json"


@dataclass(frozen=True, slots=True)
class Project:
    """Settings with the declarations they point to.

    Attributes:
        settings: What `headwater.toml` says.
        declarations: What its module of views says; of a part, what it says of one source.
        profile: Profile of the settings that was asked for.
        whole: The project that this is a part of; None of a whole project.
    """

    settings: Settings
    declarations: Declarations
    profile: str | None = None
    whole: Project | None = None

    @property
    def home(self) -> Home:
        """The folder of all state."""
        return Home(self.settings.home)

    @property
    def source(self) -> Source:
        """The one source.

        Raises:
            UsageError: The project has several sources, and this is no part of it.
        """
        found = self.declarations.sources
        if len(found) > 1:
            raise UsageError(
                f"the project has {len(found)} sources: {', '.join(found)}",
                hint=f"choose one: --source {next(iter(found))}",
            )
        return next(iter(found.values()))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of all sources of the whole project, in the order of their declarations."""
        return tuple((self.whole or self).declarations.sources)

    @property
    def cross_reads(self) -> CrossReads:
        """What derived views over several sources mean to the one source."""
        return (self.whole or self).declarations.cross_reads(self.source.name)

    @property
    def readers(self) -> dict[str, DerivedView]:
        """Derived views with rows of the one source that another source's job maintains."""
        return {view.name: view for view in self.cross_reads.derived}

    @property
    def views(self) -> dict[str, View | DerivedView]:
        """All declared views by name."""
        return {**self.declarations.views, **self.declarations.derived}

    @property
    def shares_home(self) -> bool:
        """Whether the home folder has the views of several sources."""
        return len(self.sources) > 1

    @property
    def parts(self) -> tuple[Project, ...]:
        """The part of each source; a project of one source is its own part."""
        whole = self.whole or self
        if not whole.shares_home:
            return (whole,)
        return tuple(map(whole.part, whole.sources))

    def part(self, source: str) -> Project:
        """Returns the part of one source.

        Raises:
            UsageError: No such source is declared.
        """
        whole = self.whole or self
        if source not in whole.sources:
            known = "sources: " + ", ".join(whole.sources)
            raise UsageError(
                f"no source is named {source[:80]}",
                hint=did_you_mean(source, whole.sources, known),
            )
        if not whole.shares_home:
            return whole
        return replace(whole, declarations=whole.declarations.of_source(source), whole=whole)

    def part_of(self, view: str) -> Project:
        """Returns the part with a declared view.

        Raises:
            UsageError: The project has several sources, and none has the view.
        """
        whole = self.whole or self
        if not whole.shares_home:
            return whole
        if view not in whole.views:
            raise UsageError(
                f"no view named {view[:80]} is declared",
                hint=did_you_mean(view, whole.views, "headwater view list"),
            )
        return whole.part(whole.declarations.source_of(view))


def open_project(
    config: Path | None = None, *, home: Path | None = None, profile: str | None = None
) -> Project:
    """Opens the project of a settings file, of this folder, or the one its home remembers.

    Args:
        config: Settings file; otherwise `headwater.toml` here, otherwise what `.headwater` here
            was last started with (the demo leaves its views to be looked at).
        home: Folder of all state, if not the usual one.
        profile: Profile of the settings file.

    Raises:
        SettingsError: There is no settings file or it cannot be used.
        DeclarationError: The views are declared wrongly.
        UsageError: The project has no source, or the settings name one that it does not have.
        ConflictingSettingsError: Its sources cannot be kept apart.
    """
    path = settings_file(config, home=home)
    if config is None and path != Path(DEFAULT_FILE):
        home = home or Path(HOME_FOLDER)
    settings = load(path, home=home, profile=profile)
    declarations = load_declarations(settings.views_path, settings.root)
    try:
        check(settings, declarations)
    except UsageError as error:
        if (name := added_text.unfinished(path.parent)) is not None:
            raise UsageError(error.message, detail=error.detail, hint=_again(name)) from None
        raise
    return Project(settings, declarations, profile)


def _again(name: str) -> str:
    return f"headwater init --add-source {name} was interrupted: give it again"


def settings_file(config: Path | None = None, *, home: Path | None = None) -> Path:
    """Returns the settings file that `open_project` reads; it need not exist."""
    path = config or Path(DEFAULT_FILE)
    if config is None and not path.is_file():
        remembered = read_json((home or Path(HOME_FOLDER)) / _REMEMBERED)
        path = Path(remembered["settings"]) if remembered else path
    return path


def remember(project: Project, settings_file: Path) -> None:
    """Writes into the home which settings it belongs to, so that later commands find them."""
    text = json.dumps({"settings": str(settings_file.resolve())})
    write_atomically(project.home.root / _REMEMBERED, text, mode=0o600)
