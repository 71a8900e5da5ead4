"""Which of the soak tests a run takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.fix_soak import taken

MINUTES = {"demo": 10.0, "forget": 10.0, "replay": 9.0, "kill": 4.0, "cluster": 3.5}

some = st.dictionaries(st.text(min_size=1, max_size=4), st.floats(0.1, 30), max_size=8)


@given(some, st.floats(0, 60), st.integers(0, 2**32))
def test_a_run_takes_what_fits_and_as_many_as_fit(minutes, limit, seed):
    chosen = taken(minutes, limit, seed)

    used = sum(minutes[name] for name in chosen)
    assert used <= limit + 1e-6
    assert all(used + minutes[name] > limit - 1e-6 for name in minutes.keys() - chosen)
    assert chosen == taken(minutes, limit, seed)


def test_each_is_taken_by_one_run_or_another():
    runs = [taken(MINUTES, 20, seed) for seed in range(60)]

    assert MINUTES.keys() == set().union(*runs)
    assert all(run != MINUTES.keys() for run in runs)


def test_without_a_limit_all_are_taken():
    assert MINUTES.keys() == taken(MINUTES, None, 1)
