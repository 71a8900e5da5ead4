"""Headwater as `pip install headwater` leaves it: from its wheel, with base dependencies only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Refuses to find what is not listed, as if it were not installed. A library that looks whether
# another one is there (find_spec) gets the same answer.
_REFUSE = """
import json, sys
class Refuse:
    refused = set(json.loads({refused!r}))
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in cls.refused:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse)
"""


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> set[str]:
    """Names of the distributions that these need, and what those need in turn."""
    seen: set[tuple[str, frozenset[str]]] = set()
    left = [Requirement(text) for text in requirements]
    while left:
        wanted = left.pop()
        entry = normalized(wanted.name), frozenset(wanted.extras)
        if entry in seen:
            continue
        seen.add(entry)
        try:
            needs = metadata.requires(wanted.name) or []
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for need in map(Requirement, needs):
            extras = ["", *wanted.extras]
            if need.marker is None or any(need.marker.evaluate({"extra": e}) for e in extras):
                left.append(need)
    return {name for name, _ in seen}


def modules_of(distributions: set[str]) -> set[str]:
    """Top modules that only these distributions bring."""
    return {
        module
        for module, owners in _owners().items()
        if {normalized(owner) for owner in owners} <= distributions
    }


@cache
def _owners() -> Mapping[str, list[str]]:
    """Distributions of each top module: all lists of files are read for it."""
    return metadata.packages_distributions()


@dataclass(frozen=True, slots=True)
class Installed:
    """A folder with the wheel's content, and how to run Python on it.

    Attributes:
        folder: The folder.
        refused: Modules that are not found, because the base dependencies lack them.
    """

    folder: Path
    refused: list[str]

    def python(self, code: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        program = _REFUSE.format(refused=json.dumps(self.refused)) + code
        return subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def headwater(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        code = "from headwater.cli import main; sys.exit(main(sys.argv[1:]))"
        return self.python(code, *words, cwd=cwd)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel unpacked, away from the repository."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    base = closure(PROJECT["dependencies"])
    refused = modules_of(closure(PROJECT["optional-dependencies"]["platform"]) - base)
    return Installed(folder, sorted(refused))
