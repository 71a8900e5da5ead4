"""Strict checkers pass on the examples of the event store: its pages, its package, the bank."""

from __future__ import annotations

import ast
import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eventstore

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
SUPPORT = ROOT / "tests" / "support"
GUIDES = ("eventstore.md", "uniqueness.md", "saved-states.md", "reactors.md")
"""Pages of prompts, each one program."""
FRAGMENTS = ("processes.md", "subscriptions.md", "tenants.md", "reactors.md")
"""Pages with fragments; what they use and do not define is in `docs_names`."""
HEAD = '''"""The guide, as a module."""

from collections.abc import Callable

from eventstore.reactor.control import Reactors

DSN: str = ""
RECEIVER: str = ""
received: list[dict[str, object]] = []
invoices: list[tuple[str, str]] = []
reactors = Reactors(DSN)


def wait_for(what: Callable[[], object]) -> None:
    """Waits until it returns something true."""


def show(value: object) -> None:
    """Stands for what the prompt does with a value."""


'''


@pytest.fixture(params=[*(f"prompts of {page}" for page in GUIDES), *FRAGMENTS, "package", "bank"])
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the examples: one file, or one for each fragment."""
    if request.param in FRAGMENTS:
        blocks = re.findall(r"```python\n(.*?)```", (DOCS / request.param).read_text(), re.DOTALL)
        for number, block in enumerate(blocks):
            names = "from docs_names import *\n\n"
            (tmp_path / f"fragment_{number}.py").write_text(names + block)
    elif request.param == "bank":
        for path in (ROOT / "examples" / "bank").glob("[!_]*.py"):
            shutil.copy(path, tmp_path)
    else:
        (tmp_path / "guide.py").write_text(program(request.param.removeprefix("prompts of ")))
    return tmp_path


def program(name: str) -> str:
    """The examples of a page, or of the package; what the prompt would print goes to `show`."""
    if name == "package":
        text = eventstore.__doc__ or ""
    else:
        blocks = re.findall(r"```pycon\n(.*?)```", (DOCS / name).read_text(), re.DOTALL)
        text = "\n".join(blocks)
    lines = []
    for example in doctest.DocTestParser().get_examples(text):
        (statement,) = ast.parse(example.source).body
        lines.append(example.source.rstrip("\n").replace("_ = ", ""))
        if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Call):
            lines[-1] = f"show({ast.unparse(statement)})"
    return HEAD + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy knows of the packages: each page would have it read them again."""
    return tmp_path_factory.mktemp("mypy")


def test_mypy_strict_passes_on_a_page(module: Path, cache: Path) -> None:
    options = ["--strict", "--no-error-summary", "--implicit-reexport", "--cache-dir", str(cache)]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", *options, *map(str, module.glob("*.py"))],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("", 0) == (done.stdout, done.returncode), done.stderr


def test_pyright_strict_passes_on_a_page(module: Path) -> None:
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed: pip install pyright")
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(module)],
        "extraPaths": [str(ROOT), str(SUPPORT)],
        "pythonVersion": "3.11",
    }
    (module / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable, "--outputjson", "-p", str(module)],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    found = answer["generalDiagnostics"]

    assert len(list(module.glob("*.py"))) == answer["summary"]["filesAnalyzed"]
    assert [] == [
        f"{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found
        if each["severity"] == "error"
    ]
