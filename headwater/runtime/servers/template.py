"""Server configuration from text templates, shared with the container files."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Final

TEMPLATES: Final = Path(__file__).parent / "templates"


def render(name: str, **values: object) -> str:
    """Returns a template with every placeholder filled.

    Raises:
        KeyError: A placeholder has no value.
    """
    text = (TEMPLATES / name).read_text("utf-8")
    return Template(text).substitute({key: str(value) for key, value in values.items()})


def render_to(folder: Path, name: str, **values: object) -> Path:
    """Writes a rendered template into a folder; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    target.write_text(render(name, **values), "utf-8")
    return target
