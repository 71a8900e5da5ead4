"""The file `.env` beside the settings file: secrets as `NAME=value` lines."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from dotenv import dotenv_values

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Returns the variables of a `.env` file; none if there is no such file.

    Values may be quoted, lines may begin with `export`; `$` has no meaning.
    """
    return _parsed(path.read_text(encoding="utf-8")) if path.is_file() else {}


def line(name: str, value: str) -> str:
    """Returns the line that sets a variable, quoted only if the value needs it."""
    plain = f"{name}={value}\n"
    if _parsed(plain) == {name: value}:
        return plain
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{name}='{escaped}'\n"


def _parsed(text: str) -> dict[str, str]:
    found = dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}
