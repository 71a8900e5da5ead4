"""A copy of a project with a changed declaration of one view."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.project.project import Project

_EDIT: Final = """

from dataclasses import replace as _replace

from projections.definition.registry import collected as _collected

_views = _collected().views
_view = _views[{view!r}]
_views[{view!r}] = _replace(_view, left_out=(*_view.left_out, {column!r}))
"""


@contextmanager
def without_column(project: Project, config: Path, view: str, column: str) -> Iterator[Path]:
    """Creates a copy of a project in which a mirror omits a column; deletes it at the end.

    Args:
        project: The project.
        config: Its settings file; the files beside it are copied.
        view: The mirror.
        column: The column.

    Yields:
        The settings file of the copy.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-demo-") as folder:
        root = Path(folder) / config.parent.name
        home = project.settings.home.name
        shutil.copytree(config.parent, root, ignore=shutil.ignore_patterns("__pycache__", home))
        with (root / project.settings.project.views).open("a", encoding="utf-8") as views:
            views.write(_EDIT.format(view=view, column=column))
        yield root / config.name
