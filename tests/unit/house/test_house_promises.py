"""Every promise of the README has tests, and each of them is in every run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.fix_counts import promises

ROOT = Path(__file__).resolve().parents[3]
PROMISES = promises(ROOT)


def test_the_promises_are_those_of_the_readme():
    section = (ROOT / "README.md").read_text().split("\n## What is promised\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)

    assert rows[0] == "promise"
    assert [*PROMISES] == rows[1:]


@pytest.mark.parametrize("name", sorted({name for names in PROMISES.values() for name in names}))
def test_a_promise_is_shown_by_a_test_of_every_run(name):
    file, _, function = name.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    (found,) = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
    marks = [
        n.value for n in tree.body if isinstance(n, ast.Assign) and "pytestmark" in ast.dump(n)
    ]

    assert "attr='soak'" not in "".join(map(ast.dump, [*marks, *found.decorator_list]))
