"""What a run takes of many seeds: some, by its own seed; all of them with ``--matrix=full``.

Each test is in every run. Only the seeds that it is tried with change from run to run: they follow
from the seed that pytest prints, so that ``--randomly-seed=N`` repeats a run with all that it took.

A test that has one case for each seed is marked with ``rotating``, and its cases' names say which
were taken. One that goes through seeds itself asks the fixture ``rotation``. Hypothesis has one
profile for each matrix, and its examples follow from the run's seed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest
from hypothesis import core, settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

T = TypeVar("T")

_PART: Final = 4
"""Which part of all seeds a run takes: one of so many."""
_EXAMPLES_MIN: Final = 10
_MATRIX: Final = "--matrix"
_FULL_TIMEOUT_S: Final = 2400

for _name, _examples in (("gate", 50), ("soak", 500)):
    # What decides is the seed: neither how fast the machine is nor what failed before.
    settings.register_profile(_name, max_examples=_examples, deadline=None, database=None)


def examples(count: int) -> int:
    """How many examples a property test takes that has so many in `make soak`."""
    whole = settings.get_current_profile_name() == "soak"
    return count if whole else min(count, max(_EXAMPLES_MIN, -(-count // _PART)))


@dataclass(frozen=True, slots=True)
class Rotation:
    """Chooses seeds by the run's own.

    Args:
        seed: The run's.
        name: The test's, so that each test chooses for itself.
        full: Whether every seed is taken.
    """

    seed: int
    name: str
    full: bool

    def of(self, seeds: Iterable[T], count: int | None = None) -> list[T]:
        """So many of the seeds, in their order; a quarter if it is not said how many."""
        every = list(seeds)
        if self.full:
            return every
        wanted = -(-len(every) // _PART) if count is None else count
        chance = Random(f"{self.seed} {self.name}")  # noqa: S311  # no secret
        return [every[at] for at in sorted(chance.sample(range(len(every)), wanted))]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        _MATRIX,
        choices=["rotating", "full"],
        default="rotating",
        help="tests with many seeds take some of them, by the run's seed, or all (make soak)",
    )


@pytest.hookimpl(trylast=True)  # once the seed is known
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "rotating(names, seeds, count): one case for each of so many of these seeds"
    )
    if not config.getoption("hypothesis_profile", None):
        settings.load_profile("soak" if config.getoption(_MATRIX) == "full" else "gate")
    if config.getoption("hypothesis_seed", None) is None:
        core.global_force_seed = _seed(config)  # as that option does


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Gives tests that go through all seeds the time of `make soak`."""
    if config.getoption(_MATRIX) == "full":
        for item in items:
            item.add_marker(pytest.mark.timeout(_FULL_TIMEOUT_S), append=False)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for mark in metafunc.definition.iter_markers("rotating"):
        names, seeds, *count = mark.args
        rotation = _rotation(metafunc.config, metafunc.definition.nodeid)
        metafunc.parametrize(names, rotation.of(seeds, *count), ids=_ids(names))


def _ids(names: str | Sequence[str]) -> Any:
    """Says of a number alone what it is."""
    if not isinstance(names, str) or "," in names:
        return None
    return lambda value: f"{names}{value}" if isinstance(value, int) else None


@pytest.fixture(scope="session")
def run_seed(pytestconfig: pytest.Config) -> int:
    """The seed that pytest prints."""
    return _seed(pytestconfig)


@pytest.fixture
def rotation(request: pytest.FixtureRequest) -> Rotation:
    """Chooses what this test takes of many seeds."""
    return _rotation(request.config, request.node.nodeid)


def _rotation(config: pytest.Config, name: str) -> Rotation:
    return Rotation(_seed(config), name, config.getoption(_MATRIX) == "full")


def _seed(config: pytest.Config) -> int:
    seed = config.getoption("randomly_seed", None)  # absent, or "default", without the plugin
    return seed if isinstance(seed, int) else 0
