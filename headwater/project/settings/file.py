"""Reading `headwater.toml`: profiles laid over it, `${NAME}` filled in, unknown keys refused."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from foundation.suggestion import did_you_mean
from headwater.project.settings import dotenv
from headwater.project.settings.errors import (
    ConflictingSettingsError,
    SettingsError,
    UnknownSettingError,
    UnsetVariableError,
)
from headwater.project.settings.model import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

DEFAULT_FILE = "headwater.toml"
HOME_FOLDER = ".headwater"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def load(
    path: Path,
    *,
    home: Path | None = None,
    profile: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Reads a settings file.

    Args:
        path: The file; its folder is the project's root.
        home: Folder of all state; `HEADWATER_HOME` or `.headwater` beside the file otherwise.
        profile: Section `[profile.NAME]` to lay over the rest; `HEADWATER_PROFILE` otherwise.
        environ: The environment; the process's own if left out. Variables that it lacks are
            looked for in a file `.env` beside the settings file, which keeps secrets out of both.

    Raises:
        SettingsError: The file is missing, is not TOML, or a value has the wrong type.
        UnknownSettingError: A key is not a setting.
        UnsetVariableError: A `${NAME}` is not set.
        ConflictingSettingsError: A cluster is named and another is to be started.
    """
    environ = dotenv.read(path.parent / ".env") | dict(os.environ if environ is None else environ)
    fields = _read(path)
    fields = _with_profile(fields, profile or environ.get("HEADWATER_PROFILE"))
    fields = _filled(fields, environ, "")
    home = home or Path(environ.get("HEADWATER_HOME") or path.parent / HOME_FOLDER)
    java_home = environ.get("JAVA_HOME")
    fields |= {
        "root": path.parent.resolve(),
        "home": home.resolve(),
        "java_home": java_home or None,
    }
    try:
        settings = Settings.model_validate(fields)
    except ValidationError as error:
        raise _explained(error, path) from None
    if settings.spark.workers and "master" in settings.spark.model_fields_set:
        raise ConflictingSettingsError(
            f"{path.name}: spark.master and spark.workers exclude each other",
            hint="master names an external cluster, workers starts one on this machine",
        )
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "headwater init <folder> --dsn postgresql://… writes one"
        raise SettingsError(
            "the settings file does not exist", detail=str(path), hint=hint
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path.name} is not TOML", detail=str(error)) from None
    computed = {"root", "home", "java_home"} & fields.keys()
    if computed:
        hint = "the folder of the file is the root; --home or HEADWATER_HOME sets the home"
        raise UnknownSettingError(f"{min(computed)} is not a setting of the file", hint=hint)
    return fields


def _with_profile(fields: dict[str, Any], profile: str | None) -> dict[str, Any]:
    profiles = fields.pop("profile", {})
    if profile is None:
        return fields
    if profile not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        raise SettingsError(f"unknown profile {profile}", detail=f"the file has: {known}")
    return _merged(fields, profiles[profile])


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merged(old, value) if both and old is not None else value
    return merged


def _filled(value: Any, environ: Mapping[str, str], place: str) -> Any:
    if isinstance(value, dict):
        return {
            key: _filled(item, environ, f"{place}.{key}".lstrip(".")) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_filled(item, environ, place) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        name, default = match.groups()
        found = environ.get(name) or default
        if found is None:
            hint = f"export {name}=…, or write ${{{name}:-default}}"
            raise UnsetVariableError(f"{place}: variable {name} is not set", hint=hint)
        return found

    return _VARIABLE.sub(replacement, value)


def _explained(error: ValidationError, path: Path) -> SettingsError:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        above = "".join(f"{part}." for part in first["loc"][:-1])
        known = [above + name for name in _siblings(first)]
        hint = did_you_mean(place, known, "settings: " + ", ".join(known))
        return UnknownSettingError(f"{path.name}: {place} is not a setting", hint=hint)
    return SettingsError(f"{path.name}: {place} is invalid", detail=first["msg"])


def _siblings(error: ErrorDetails) -> list[str]:
    """Names of the settings that stand where an unknown one was found."""
    model: type[BaseModel] = Settings
    for part in error["loc"][:-1]:
        annotation = (
            model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        )
        arguments = getattr(annotation, "__args__", ())
        inner = arguments[-1] if arguments else annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            model = inner
    return [name for name in model.model_fields if name not in {"root", "home", "java_home"}]
