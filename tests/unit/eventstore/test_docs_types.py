"""Strict checkers pass on every example of the event store's guide and of its package."""

from __future__ import annotations

import ast
import doctest
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eventstore

ROOT = Path(__file__).resolve().parents[3]
GUIDE = ROOT / "docs" / "eventstore.md"
HEAD = '''"""The guide, as a module."""

DSN: str = ""


def show(value: object) -> None:
    """Stands for what the prompt does with a value."""


'''


@pytest.fixture(params=["guide", "package"])
def module(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The examples as one file; what the prompt would print is given to `show`."""
    blocks = re.findall(r"```pycon\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    text = "\n".join(blocks) if request.param == "guide" else eventstore.__doc__ or ""
    examples = doctest.DocTestParser().get_examples(text)
    lines = []
    for example in examples:
        (statement,) = ast.parse(example.source).body
        lines.append(example.source.rstrip("\n").replace("_ = ", ""))
        if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Call):
            lines[-1] = f"show({ast.unparse(statement)})"
    path = tmp_path / "guide.py"
    path.write_text(HEAD + "\n".join(lines) + "\n")
    return path


def test_mypy_strict_passes_on_the_guide(module: Path) -> None:
    options = ["--strict", "--no-error-summary", "--cache-dir", str(module.parent / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", *options, str(module)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("", 0) == (done.stdout, done.returncode), done.stderr


def test_pyright_strict_passes_on_the_guide(module: Path) -> None:
    pyright = shutil.which("pyright") or shutil.which("basedpyright")
    if pyright is None:
        pytest.skip("pyright is not installed: pip install pyright")
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(module)],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
    }
    (module.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable, "--outputjson", "-p", str(module.parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    found = answer["generalDiagnostics"]

    assert 1 == answer["summary"]["filesAnalyzed"]
    assert [] == [
        f"{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found
        if each["severity"] == "error"
    ]
