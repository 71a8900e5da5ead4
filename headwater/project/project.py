"""A project: its settings and what its module declares."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foundation.atomic_file import write_atomically
from headwater.errors import UsageError
from headwater.project.settings import DEFAULT_FILE, HOME_FOLDER, load
from headwater.runtime.home import Home, read_json
from projections.definition.registry import load as load_declarations

if TYPE_CHECKING:
    from headwater.project.settings import Settings
    from projections.definition.registry import Declarations
    from projections.definition.views import Source

EXAMPLE = Path(__file__).parents[2] / "examples" / "globalshop" / DEFAULT_FILE
"""GlobalShop, which ships with the package."""

_REMEMBERED = "project.json"


@dataclass(frozen=True, slots=True)
class Project:
    """Settings with the declarations they point to.

    Attributes:
        settings: What `headwater.toml` says.
        declarations: What its module of views says.
        profile: Profile of the settings that was asked for.
    """

    settings: Settings
    declarations: Declarations
    profile: str | None = None

    @property
    def home(self) -> Home:
        """The folder of all state."""
        return Home(self.settings.home)

    @property
    def source(self) -> Source:
        """The project's source: one Postgres is the system of record."""
        return next(iter(self.declarations.sources.values()))


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
        UsageError: The project does not have exactly one source.
    """
    path = settings_file(config, home=home)
    if config is None and path != Path(DEFAULT_FILE):
        home = home or Path(HOME_FOLDER)
    settings = load(path, home=home, profile=profile)
    declarations = load_declarations(settings.views_path, settings.root)
    project = Project(settings, declarations, profile)
    _check_sources(project)
    return project


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


def _check_sources(project: Project) -> None:
    sources = project.declarations.sources
    if len(sources) != 1:
        raise UsageError(
            f"a project needs one source, this one declares {len(sources)}",
            detail=str(project.settings.views_path),
            hint='declare one source: source("shop", tables=["public.orders"])',
        )
    unknown = project.settings.source.keys() - sources.keys()
    if unknown:
        raise UsageError(
            f"the settings name a source {min(unknown)} that is not declared",
            hint="declared: " + ", ".join(sources),
        )
