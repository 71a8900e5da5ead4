"""`headwater init --add-source`: a second database for a project that a person has written.

What is there stays as it is: text is added at the end of `.env`, of the settings and of the module
of views. The result is loaded before anything is written, and each file is replaced whole. After a
kill between two files the same command first takes away what it had added (see `added_text`).
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foundation.atomic_file import write_atomically
from headwater.errors import UsageError
from headwater.project import scaffold
from headwater.project.added_text import adding, joined
from headwater.project.settings import dotenv
from headwater.project.sources import check
from headwater.project.spelling import SOURCE_LENGTH_MAX, identifier
from headwater.project.views_text import ModuleNames, views_text
from projections.definition.registry import load

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.project.project import Project
    from headwater.project.scaffold import Draft
    from headwater.project.survey import DatabaseSurvey, TableSelection

_SECRETS_MODE = 0o600


@dataclass(frozen=True, slots=True)
class AddedSource:
    """A source that can be added to a project.

    Attributes:
        survey: What is chosen of its database.
        settings: What is added to the settings.
        views: What is added to the module of views.
        taken: Names of views that the project has.
    """

    survey: DatabaseSurvey
    settings: str
    views: str
    taken: frozenset[str]
    _secret: str
    _settings_file: Path
    _project: Project

    def __repr__(self) -> str:
        return f"AddedSource({self.survey.source})"

    def write(self) -> list[Path]:
        """Adds the source; returns the files that were changed.

        Raises:
            ProjectionError: The module of views cannot be loaded with it; nothing has changed.
            UsageError: The settings are not TOML with it; nothing has changed.
            ConflictingSettingsError: The sources cannot be kept apart; nothing has changed.
        """
        views, settings = self._project.settings.views_path, self._settings_file
        secrets = settings.parent / ".env"
        contents = [
            (secrets, joined(secrets, self._secret)),
            (settings, joined(settings, self.settings)),
            (views, joined(views, self.views)),
        ]
        draft = views.with_name(f"_{views.stem}_with_{self.survey.source}.py")
        with adding(settings.parent, self.survey.source, contents, [draft]):
            self._require_loadable(contents[1][1], draft, contents[2][1])
            scaffold.ignore(settings.parent / ".gitignore")
            for file, content in contents:
                mode = _SECRETS_MODE if file == secrets else file.stat().st_mode & 0o777
                write_atomically(file, content, mode=mode)
        return [secrets, settings, views]

    def _require_loadable(self, settings: bytes, draft: Path, views: bytes) -> None:
        try:
            tomllib.loads(settings.decode())
        except tomllib.TOMLDecodeError as error:
            raise UsageError(
                f"{self._settings_file.name} cannot be extended",
                detail=str(error),
                hint=f"add this yourself: {' '.join(self.settings.split())}",
            ) from None
        try:
            write_atomically(draft, views, durable=False)
            declared = load(draft, self._project.settings.root)
        finally:
            draft.unlink(missing_ok=True)
        check(self._project.settings, declared)


def added(
    project: Project, settings_file: Path, name: str, dsn: str, wanted: TableSelection | None = None
) -> tuple[AddedSource, Draft]:
    """Looks into a database and chooses what to mirror of it; writes nothing.

    Args:
        project: The project.
        settings_file: Its settings file.
        name: Name of the source.
        dsn: The database.
        wanted: Which tables are asked for; all if left out.

    Raises:
        UsageError: The name is taken or none, or no table can be mirrored.
        PostgresError: The database cannot be reached; each cause has its own code.
    """
    if identifier(name, SOURCE_LENGTH_MAX, "db") != name:
        raise UsageError(
            f"{name[:80]} is no name of a source",
            hint=f"use --add-source {identifier(name, SOURCE_LENGTH_MAX, 'db')}",
        )
    settings, views = settings_file.read_text("utf-8"), project.settings.views_path
    if name in project.sources or name in tomllib.loads(settings).get("source", {}):
        raise UsageError(
            f"the project has a source {name}",
            detail="sources: " + ", ".join(project.sources),
            hint="choose another name for --add-source",
        )
    folder = settings_file.parent
    draft = scaffold.drafted(folder, dsn, name, wanted)
    secrets = folder / ".env"
    known = settings + (secrets.read_text("utf-8") if secrets.is_file() else "")
    base = f"{name.upper()}_DSN"
    variables = (base, *(f"{base}_{number}" for number in range(2, len(known) + 3)))
    variable = next(each for each in variables if each not in known)
    beside = ModuleNames(frozenset(project.views), _bound(views.read_text("utf-8")))
    text = (
        f'\n[source.{name}]\ndsn = "${{{variable}}}"        # kept in .env, or in the environment\n'
    )
    made = AddedSource(
        draft.survey,
        text,
        f"\n\n{views_text(draft.survey, beside)}",
        beside.views,
        dotenv.line(variable, draft.dsn),
        settings_file,
        project,
    )
    return made, draft


def _bound(module: str) -> frozenset[str]:
    """Names that a module uses anywhere, but those that it is expected to import."""
    found = {node.id for node in ast.walk(ast.parse(module)) if isinstance(node, ast.Name)}
    return frozenset(found - {"source", "view"})
