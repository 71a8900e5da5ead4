"""Windows as they are declared: what they ask for, and what cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.definition.registry import load
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.views import DerivedView

BEFORE = """
from headwater import Calendar, Hopping, Session, Sliding, Tumbling, source, view

shop = source("shop", tables=["orders"])
orders = view.mirror("orders", shop.orders)
ABOUT = view.Approximate("x")
"""


def declared(folder: Path, said: str) -> DerivedView:
    path = folder / "views.py"
    path.write_text(f'{BEFORE}view.aggregate("w", orders, {said})\n', encoding="utf-8")
    return load(path).derived["w"]


def test_a_window_is_a_key_of_its_view(tmp_path: Path) -> None:
    minutes = 'by=["region"], window=Tumbling("at", "1 minute"), count="n"'
    sliding = 'by=["region"], window=Sliding("at", "1 minute"), count="n"'

    assert ("region", "window_start") == declared(tmp_path, minutes).keys
    assert ("region", "window_end") == declared(tmp_path, sliding).keys
    of_all = declared(tmp_path, 'window=Tumbling("at", "1 minute"), count="n", to=["table"]')
    assert ("window_start",) == of_all.keys
    assert ("orders",) == of_all.inputs
    lately = declared(tmp_path, 'window=Sliding("at", "8 minutes"), count="n", to=["table"]')
    assert ("window_end",) == lately.keys


def test_an_aggregate_without_a_window_is_the_query_that_it_was(tmp_path: Path) -> None:
    """Another text would be another definition, and its view be made anew."""
    view = declared(
        tmp_path,
        'by=["a", "b`c"], count="n", sums={"s": "x"}, distinct={"d": "y"},'
        ' top={"t": view.Top("x", 2, ("id",))}, where="x > 1"',
    )

    assert view.sql == (
        "SELECT `a`, `b``c`, count(*) AS `n`, sum(`x`) AS `s`, count(DISTINCT `y`) AS `d`,"
        " slice(sort_array(collect_list(struct(`x`, `id`)), false), 1, 2) AS `t`"
        " FROM orders WHERE x > 1 GROUP BY `a`, `b``c`"
    )


def test_an_exact_percentile_is_the_query_that_it_was(tmp_path: Path) -> None:
    said = 'by=["a"], percentiles={"p": view.Percentile("x", 0.5)}'

    sql = declared(tmp_path, said).sql
    assert sql == "SELECT `a`, percentile(`x`, 0.5D) AS `p` FROM orders GROUP BY `a`"
    about = declared(tmp_path, said.replace("0.5", "0.5, 0.01")).sql
    assert about is not None
    assert "percentile(CASE WHEN abs(CAST(`x` AS DOUBLE)) < 1e-300D THEN 0D" in about


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('by=["a"]', "computes nothing"),
        ('count="n"', "has no groups"),
        ('by=["a"], window=Tumbling("at", "1 minute")', "computes nothing"),
        ('by=["a"], count="a"', "columns named a"),
        ('by=["a"], window=Tumbling("at", "1 minute"), count="window_end"', "window_end"),
        ('by=["a"], count="n", sums={"n": "x"}', "columns named n"),
        ('window=Tumbling("at", "a while"), count="n"', "invalid duration"),
        ('window=Tumbling("at", "1 minute or so"), count="n"', "invalid duration"),
        ('window=Tumbling("at", "0 seconds"), count="n"', "must be positive"),
        ('window=Tumbling("at", "99999999999 weeks"), count="n"', "exceeds a thousand years"),
        ('window=Tumbling("at", "60000 weeks"), count="n"', "exceeds a thousand years"),
        ('window=Hopping("at", "1 day", "1 minute"), count="n"', "in 1440 windows"),
        ('window=Calendar("at", "hour"), count="n"', "unit of a calendar window is invalid"),
        ('window=Calendar("at", "day", "Mars/Olympus"), count="n"', "unknown time zone"),
        ('window=Calendar("at", "day", "../../etc/passwd"), count="n"', "unknown time zone"),
        ('window=Session("at", "5 minutes"), count="n"', "would be one"),
        ('by=["a"], window=Session("at", "5 minutes"), rate="r"', "needs a window of fixed width"),
        ('by=["a"], rate="r"', "needs a window of fixed width"),
        (
            'by=["a"], window=Sliding("at", "1 hour"), distinct={"d": "x"}',
            "is not supported for a sliding window",
        ),
        ('by=["a"], percentiles={"p": view.Percentile("x", 95)}', "must be between 0 and 1"),
        (
            'by=["a"], percentiles={"p": view.Percentile("x", 0.5, 0.0001)}',
            "is out of range",
        ),
        ('by=["a"], percentiles={"p": view.Percentile("x", 0.5, error=1)}', "is out of range"),
        ('by=["a"], approximate_distinct={"d": view.Approximate("x", 0.0001)}', "is out of range"),
        (
            'by=["a"], window=Sliding("at", "1 day"), approximate_distinct={"d": ABOUT}',
            "is not supported for a sliding window",
        ),
    ],
)
def test_what_no_window_can_be_is_refused_with_the_reason(
    tmp_path: Path, said: str, why: str
) -> None:
    with pytest.raises(DeclarationError, match=why):
        declared(tmp_path, said)


def test_windows_that_hop_further_than_they_are_wide_have_gaps(tmp_path: Path) -> None:
    view = declared(tmp_path, 'window=Hopping("at", "6 minutes", "10 minutes"), count="n"')

    assert ("window_start",) == view.keys
    assert view.sql is not None
    since = "pmod(unix_micros(CAST(`at` AS TIMESTAMP)) - 0, 600000000)"
    assert f"AND {since} < 360000000)" in view.sql
    assert "_begins + INTERVAL 360000000 MICROSECONDS AS window_end" in view.sql


@pytest.mark.parametrize(
    ("window", "begins"),
    [
        ('Tumbling("at", "1 minute", "5 minutes")', 0),
        ('Tumbling("at", "1 minute", "1 hour 20 seconds")', 20_000_000),
        ('Hopping("at", "10 minutes", "4 minutes", "10 minutes")', 120_000_000),
    ],
)
def test_windows_may_begin_later_by_more_than_one_follows_another(
    tmp_path: Path, window: str, begins: int
) -> None:
    """Spark takes no offset as long as a window's step."""
    view = declared(tmp_path, f'window={window}, count="n"')

    assert view.sql is not None
    assert f", '{begins} microseconds') AS _window" in view.sql


def test_durations_may_have_several_parts(tmp_path: Path) -> None:
    view = declared(tmp_path, 'window=Tumbling("at", "1 hour 30 minutes"), rate="n"')

    assert view.sql is not None
    assert "5400000000 microseconds" in view.sql
    assert "/ 5400.0D" in view.sql
