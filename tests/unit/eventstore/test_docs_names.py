"""Every public name of the event store is on a page, and what the pages import is one."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import eventstore

DOCS = Path(__file__).resolve().parents[3] / "docs"
API = (DOCS / "api.md").read_text()
PACKAGES = [
    "eventstore",
    *(
        name
        for _, name, package in pkgutil.walk_packages(eventstore.__path__, "eventstore.")
        if package and hasattr(importlib.import_module(name), "__all__")
    ),
]
IMPORTS = sorted(
    {
        (module, name.strip())
        for page in DOCS.glob("*.md")
        for module, names in re.findall(
            r"^(?:>>> )?from (eventstore[\w.]*) import ([\w, ]+)$", page.read_text(), re.MULTILINE
        )
        for name in names.split(",")
    }
)


def section(module: str) -> str:
    """What the reference has of a module."""
    _, found, rest = API.partition(f"\n## `{module}`\n")
    assert found, f"{module} is not in docs/api_page.py"
    return rest.partition("\n## `")[0]


def heading(name: str) -> re.Pattern[str]:
    return re.compile(rf"^### (?:class |exception )?`{re.escape(name)}\b", re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_of_a_package_is_on_the_page(package):
    names = importlib.import_module(package).__all__
    text = section(package)

    assert len(names) > 3
    assert [] == [name for name in names if not heading(name).search(text)]


@pytest.mark.parametrize(("module", "name"), IMPORTS)
def test_what_a_page_imports_is_in_the_reference(module, name):
    assert heading(name).search(section(module))


def test_every_entry_says_something():
    entries = re.split(r"^### ", API, flags=re.MULTILINE)[1:]

    assert len(entries) > 100
    assert [] == [entry.splitlines()[0] for entry in entries if len(entry.splitlines()) < 3]
