"""Lateness as it is declared: what it asks for, and what cannot be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.definition.registry import load
from projections.definition.views import Store
from projections.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.views import DerivedView

BEFORE = """
from headwater import Calendar, Hopping, Late, Session, Sliding, Tumbling, source, view

shop = source("shop", tables=["orders"], eventstore=True)
orders = view.mirror("orders", shop.orders)
keyed = view.mirror("keyed", shop.orders, keys=["region", "id"])
history = view.mirror("history", shop.orders, keys=["id"], scd=2, to=["table"])
found = view.sql("found", "SELECT id, at, came FROM orders", keys=["id"])
minute = Tumbling("at", "1 minute")
minutes = view.aggregate("minutes", orders, window=minute, count="n")
placed = view.events("placed", shop.events("order.placed"))
late = Late("came", after="5 minutes")
late_or_ahead = Late("came", after="5 minutes", ahead="1 day")
"""
TIMED = "`at` >= TIMESTAMP '0002-01-01 00:00:00 UTC' AND `at` < TIMESTAMP '9999-01-01 00:00:00 UTC'"
AHEAD = "coalesce(`at` - INTERVAL 86400000000 MICROSECONDS > `came`, false)"
LATE_OF_OWN = "coalesce(`came` >= `at` + INTERVAL 300000000 MICROSECONDS, false)"


def declared(folder: Path, said: str) -> DerivedView:
    path = folder / "views.py"
    path.write_text(f"{BEFORE}view.{said}\n", encoding="utf-8")
    return load(path).derived["w"]


def sql(folder: Path, said: str) -> str:
    text = declared(folder, f'aggregate("w", orders, {said})').sql
    assert text is not None
    return short(text)


def short(text: str) -> str:
    """A query in which what follows from the time of a row alone is called by a name."""
    named = {TIMED: "<timed>", AHEAD: "<ahead>", LATE_OF_OWN: "<late>"}
    for condition, name in named.items():
        text = text.replace(condition, name)
    return text


def test_late_rows_are_left_out_before_windows_are_made(tmp_path: Path) -> None:
    text = sql(tmp_path, 'by=["a"], window=minute, late=late, count="n", where="x > 1"')

    assert text == (
        "SELECT `a`, _window.start AS window_start, _window.end AS window_end, count(*) AS `n`"
        " FROM (SELECT * FROM (SELECT *, coalesce(`came` >= _window.end"
        " + INTERVAL 300000000 MICROSECONDS, false) AS _late FROM (SELECT *, window(`at`,"
        " '60000000 microseconds', '60000000 microseconds', '0 microseconds') AS _window"
        " FROM orders WHERE (<timed>) AND (x > 1))) WHERE NOT _late) GROUP BY `a`, `_window`"
    )


def test_late_rows_that_are_counted_count_in_no_other_measure(tmp_path: Path) -> None:
    text = sql(
        tmp_path,
        'window=minute, late=Late("came", count="l"), count="n", rate="r", sums={"s": "x"},'
        ' averages={"m": "x"}, least={"b": "x"}, greatest={"e": "x"}, distinct={"d": "x"},'
        ' percentiles={"p": view.Percentile("x", 0.5)}, top={"t": view.Top("x", 2, ("id",))}',
    )

    assert text.count("FILTER (WHERE NOT _late)") == 9
    assert "count_if(_late) AS `l`" in text
    assert "WHERE NOT _late)" not in text.replace("FILTER (WHERE NOT _late)", "")


def test_nothing_but_late_rows_may_be_counted(tmp_path: Path) -> None:
    text = sql(tmp_path, 'window=Calendar("at", "day"), late=Late("came", count="l")')

    assert "AS window_end, count_if(_late) AS `l` FROM" in text


def test_windows_without_lateness_are_the_query_that_they_were(tmp_path: Path) -> None:
    """Another text would be another definition, and their views be made anew."""
    assert sql(tmp_path, 'by=["a"], window=minute, sums={"s": "x"}') == (
        "SELECT `a`, _window.start AS window_start, _window.end AS window_end, sum(`x`) AS `s`"
        " FROM (SELECT *, window(`at`, '60000000 microseconds', '60000000 microseconds',"
        " '0 microseconds') AS _window FROM orders WHERE <timed>) GROUP BY `a`, `_window`"
    )
    assert sql(tmp_path, 'window=Calendar("at", "day", "Europe/Oslo"), count="n"') == (
        "SELECT to_utc_timestamp(_begins, 'Europe/Oslo') AS window_start,"
        " to_utc_timestamp(_begins + INTERVAL 1 DAY, 'Europe/Oslo') AS window_end, count(*) AS `n`"
        " FROM (SELECT *, date_trunc('day', from_utc_timestamp(`at`, 'Europe/Oslo')) AS _begins"
        " FROM orders WHERE <timed>) GROUP BY `_begins`"
    )


@pytest.mark.parametrize(
    ("of", "more", "keys"),
    [
        ("found", "", ("id", "window_start")),
        ("keyed", "", ("region", "id", "window_start")),
        ("placed", "", ("global_position", "window_start")),
        ("orders", ', keys=["id"]', ("id", "window_start")),
        ("history", ', keys=["id", "valid_from"]', ("id", "valid_from", "window_start")),
    ],
)
def test_a_late_row_is_known_by_its_own_keys_and_the_window(
    tmp_path: Path, of: str, more: str, keys: tuple[str, ...]
) -> None:
    said = f'late("w", {of}, window=minute, late=late, to=["table"], where="x > 1"{more})'
    view = declared(tmp_path, said)

    assert (keys, (of,), frozenset({Store.TABLE})) == (view.keys, view.inputs, view.to)
    assert view.sql is not None
    assert short(view.sql).startswith(
        "SELECT * EXCEPT (_window, _late), _window.start AS window_start"
    )
    assert short(view.sql).endswith(f"FROM {of} WHERE (<timed>) AND (x > 1))) WHERE _late")


@pytest.mark.parametrize("window", ['Session("at", "1 hour")', 'Sliding("at", "1 hour")'])
def test_a_row_that_moves_the_ends_is_late_by_its_own_time(tmp_path: Path, window: str) -> None:
    text = sql(tmp_path, f'by=["a"], window={window}, late=late, count="n", where="x > 1 OR y"')
    beside = declared(tmp_path, f'late("w", found, window={window}, late=late, where="x > 1 OR y")')

    assert "WHERE (<timed>) AND ((x > 1 OR y) AND (NOT <late>))" in text
    assert ("id",) == beside.keys
    assert beside.sql is not None
    assert short(beside.sql).endswith(
        "AS late_by_s FROM found WHERE (<timed>) AND ((x > 1 OR y) AND (<late>))"
    )
    assert "5 minutes after its own time" == beside_limit(tmp_path, window)


def beside_limit(folder: Path, window: str) -> str:
    said = f'aggregate("w", orders, by=["a"], window={window}, late=late, count="n")'
    return declared(folder, said).limit


@pytest.mark.parametrize(
    "window", ["minute", 'Session("at", "1 hour")', 'Sliding("at", "1 hour")'], ids=str
)
def test_rows_ahead_of_their_arrival_are_in_no_window(tmp_path: Path, window: str) -> None:
    text = sql(tmp_path, f'by=["a"], window={window}, late=late_or_ahead, count="n"')
    beside = declared(tmp_path, f'untimed("w", found, window={window}, late=late_or_ahead)')

    assert "NOT <ahead>" in text
    assert ("id",) == beside.keys
    assert beside.sql is not None
    assert short(beside.sql) == (
        "SELECT *, CASE WHEN `at` IS NULL THEN 'missing'"
        " WHEN NOT (<timed>) THEN 'absurd' ELSE 'ahead' END AS reason"
        " FROM found WHERE NOT coalesce((<timed>) AND (NOT <ahead>), false)"
    )


def test_windows_wider_than_a_year_keep_further_from_where_years_end(tmp_path: Path) -> None:
    text = sql(tmp_path, 'window=Tumbling("at", "730 days"), count="n"')

    assert "`at` >= TIMESTAMP '0003-01-01 00:00:00 UTC'" in text
    assert "`at` < TIMESTAMP '9998-01-01 00:00:00 UTC'" in text


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('by=["a"], late=late, count="n"', "late needs a window"),
        (
            'by=["a"], window=Session("at", "1 hour"), late=Late("came", count="l"), count="n"',
            "whose end depends on its rows",
        ),
        ('window=minute, late=Late("came", ahead="soon"), count="n"', "invalid duration"),
        ("window=minute, late=late", "computes nothing"),
        ('window=minute, late=Late("came", count="n"), count="n"', "columns named n"),
        ('window=minute, late=Late("came", count="window_end"), count="n"', "window_end"),
        ('by=["a"], window=minute, late=Late("came", count="a"), count="n"', "columns named a"),
        ('window=minute, late=Late("came", after="soon"), count="n"', "invalid duration"),
        ('window=Calendar("at", "day"), late=late, rate="r"', "needs a window of fixed width"),
    ],
)
def test_windows_whose_late_rows_cannot_be_told_are_refused(
    tmp_path: Path, said: str, why: str
) -> None:
    with pytest.raises(DeclarationError, match=why):
        sql(tmp_path, said)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('found, window=Session("at", "1 hour"), late=late, keys=["late_by_s"]', "late_by_s"),
        ("orders, window=minute, late=late", "key of orders is unknown"),
        ("history, window=minute, late=late", "key of history is unknown"),
        ('orders, window=minute, late=late, keys=["id", "id"]', "keys without duplicates"),
        ("minutes, window=minute, late=late", "columns named window_start"),
        ('orders, window=minute, late=late, keys=["late_by_s"]', "columns named late_by_s"),
        ('found, window=minute, late=late, to=["nowhere"]', "nowhere"),
    ],
)
def test_views_of_late_rows_that_could_not_be_kept_are_refused(
    tmp_path: Path, said: str, why: str
) -> None:
    with pytest.raises(DeclarationError, match=why):
        declared(tmp_path, f'late("w", {said})')
