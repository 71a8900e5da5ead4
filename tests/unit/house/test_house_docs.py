"""Pages written from the code say what the code says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("cdc", "eventstore", "projections", "headwater", "examples")
CODE = re.compile(r"HW-[A-Z]?\d{2}[\dX]")  # X: the family that such codes belong to


def declared_codes() -> list[tuple[str, str]]:
    """(code, class) of every class body that assigns ``code``."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    found += [(code, f"{path.stem}.{node.name}") for code in codes_of(node)]
    return found


def codes_of(node: ast.ClassDef) -> list[str]:
    assigned = (item for item in node.body if isinstance(item, ast.Assign | ast.AnnAssign))
    named = (item for item in assigned if re.match(r"code\b", ast.unparse(item)))
    return [item.value.value for item in named if isinstance(item.value, ast.Constant)]


def test_every_error_code_means_one_thing():
    uses = Counter(code for code, _ in declared_codes())

    assert [] == [code for code, count in uses.items() if count > 1]


def test_every_error_code_has_the_house_form():
    assert [] == [found for found in declared_codes() if not CODE.fullmatch(found[0])]


def test_pages_written_from_the_code_are_current():
    command = [sys.executable, "docs/generate.py", "--check"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, "", "") == (answer.returncode, answer.stdout, answer.stderr)


def test_every_declared_code_is_in_the_table_of_errors():
    page = (ROOT / "docs" / "errors.md").read_text()

    assert [] == [code for code, _ in declared_codes() if f"| {code} |" not in page]
