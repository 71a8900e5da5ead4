"""What a run takes of many seeds depends on its own seed alone; a full one takes all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fix_seeds import Rotation

ROOT = Path(__file__).resolve().parents[3]
TESTS = """
import pytest
from hypothesis import given, settings, strategies as st
from tests.fix_seeds import examples

@pytest.mark.rotating("seed", range(40), 3)
def test_it(seed): pass

@pytest.mark.rotating(("kind", "number"), [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)])
def test_pairs(kind, number): pass

drawn = []

@settings(max_examples=examples(200))
@given(st.integers())
def test_numbers(number): drawn.append(number)

def test_inside(rotation):
    print("taken", rotation.of(range(100)))
    print("drawn", len(drawn), drawn[-1])
"""


def ran(folder: Path, *options: str) -> str:
    (folder / "test_one.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.fix_seeds",
        "-sv",
        *options,
        str(folder),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--randomly-dont-reorganize", str(folder)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def taken(said: str) -> list[str]:
    return re.findall(r"test_\w+\[\S+\]|taken.*|drawn.*", said)


def test_a_run_takes_some_seeds_and_its_own_seed_takes_the_same_again(tmp_path):
    first, again, other = (taken(ran(tmp_path, f"--randomly-seed={n}")) for n in (1, 1, 2))

    assert 3 == sum("test_it[seed" in each for each in first)
    assert 2 == sum("test_pairs[" in each for each in first)
    assert 1 == sum("drawn 50 " in each for each in first)
    assert first == again
    assert first != other


def test_a_full_matrix_takes_all(tmp_path):
    said = taken(ran(tmp_path, "--matrix=full"))

    assert 40 == sum("test_it[seed" in each for each in said)
    assert 5 == sum("test_pairs[" in each for each in said)
    assert f"taken {list(range(100))}" in said
    assert 1 == sum("drawn 200 " in each for each in said)


@pytest.mark.parametrize(("seeds", "count"), [(1, 1), (3, 1), (4, 1), (5, 2), (40, 10)])
def test_a_quarter_is_taken_and_never_nothing(seeds, count):
    assert count == len(Rotation(7, "test", full=False).of(range(seeds)))


def test_every_seed_has_its_turn():
    runs = range(200)

    assert set(range(20)) == {
        seed for run in runs for seed in Rotation(run, "test", full=False).of(range(20), 2)
    }
