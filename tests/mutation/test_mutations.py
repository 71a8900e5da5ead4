"""Faults of the kinds that the suite exists for are found by it: each is made and looked for."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILED = 1
"""What pytest exits with if tests have failed, and nothing else was wrong."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One fault: the code that becomes another, and the tests that fail then."""

    fault: str
    file: str
    code: str
    becomes: str
    tests: list[str]


MUTATIONS = [
    Mutation(**found)
    for found in tomllib.loads((Path(__file__).parent / "mutations.toml").read_text())["mutation"]
]


def test_each_mutation_is_of_code_and_tests_that_exist() -> None:
    found = {each.fault: (ROOT / each.file).read_text().count(each.code) for each in MUTATIONS}
    tests = [test for each in MUTATIONS for test in each.tests]

    assert dict.fromkeys(found, 1) == found
    assert [] == [test for test in tests if not (ROOT / test).exists()]
    assert 12 <= len(found) == len(MUTATIONS)


def run(tree: Path, tests: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--maxfail=1", *tests],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, in which all tests pass that a mutation names."""
    copy = tmp_path_factory.mktemp("mutations") / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    sound = run(copy, sorted({test for each in MUTATIONS for test in each.tests}))
    assert 0 == sound.returncode, sound.stdout[-2000:]
    return copy


@pytest.mark.soak
@pytest.mark.timeout(1800)  # the first one also waits for the whole tests of all
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.fault)
def test_a_mutation_fails_its_tests(mutation: Mutation, tree: Path) -> None:
    changed = tree / mutation.file
    before = changed.read_text()
    changed.write_text(before.replace(mutation.code, mutation.becomes))
    try:
        found = run(tree, mutation.tests)
    finally:
        changed.write_text(before)

    assert FAILED == found.returncode, found.stdout[-2000:] + found.stderr[-2000:]
