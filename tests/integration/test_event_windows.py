"""Windows are what plain Python makes of the rows, however late these come, change, and go."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest

from projections.event_window import (
    Calendar,
    Hopping,
    Session,
    Sliding,
    Tumbling,
    keys_of,
)
from projections.measure import Measures, Percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from projections.event_window import Window
    from projections.spark.derivation.analysis import Derivation

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

DDL = "id int, who string, amount int, at timestamp"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STOCKHOLM = ZoneInfo("Europe/Stockholm")
# about the night in which clocks go back: there the day has 25 hours
NIGHT = datetime(2026, 10, 24, 20, tzinfo=UTC)


class Row(NamedTuple):
    id: int
    who: str | None
    amount: int | None
    at: datetime | None


class Bounds(NamedTuple):
    start: datetime
    end: datetime


WINDOWS: dict[str, Window] = {
    "tumbling": Tumbling("at", "1 hour", offset="10 minutes"),
    "hopping": Hopping("at", "1 hour", "25 minutes"),
    "day": Calendar("at", "day", "Europe/Stockholm"),
    "month": Calendar("at", "month", "Europe/Stockholm"),
    "session": Session("at", "30 minutes"),
    "sliding": Sliding("at", "1 hour"),
}
ALL = Measures(
    count="n",
    sums={"total": "amount"},
    averages={"mean": "amount"},
    least={"least": "amount"},
    greatest={"greatest": "amount"},
    distinct={"kinds": "amount"},
    percentiles={"median": Percentile("amount", 0.5)},
)
OF_FRAMES = Measures(count="n", rate="per_s", sums={"total": "amount"}, averages={"mean": "amount"})


def fixed(at: datetime, width: timedelta, every: timedelta, offset: timedelta) -> Iterator[Bounds]:
    start = EPOCH + offset + (at - EPOCH - offset) // every * every
    while start > at - width:
        yield Bounds(start, start + width)
        start -= every


def local(at: datetime, unit: str) -> Bounds:
    day = at.astimezone(STOCKHOLM).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if unit == "day":
        # along the wall's clock, whatever the hours
        return Bounds(day.astimezone(UTC), (day + timedelta(days=1)).astimezone(UTC))
    first = day.replace(day=1)
    following = (first + timedelta(days=32)).replace(day=1)
    return Bounds(first.astimezone(UTC), following.astimezone(UTC))


def sessions(rows: list[Row]) -> Iterator[tuple[Bounds, list[Row]]]:
    gap = timedelta(minutes=30)
    together: list[Row] = []
    for row in sorted(rows, key=lambda row: row.at or EPOCH):
        if together and row.at - together[-1].at > gap:  # type: ignore[operator]
            yield _session(together, gap), together
            together = []
        together.append(row)
    if together:
        yield _session(together, gap), together


def _session(rows: list[Row], gap: timedelta) -> Bounds:
    times = [row.at for row in rows if row.at is not None]
    return Bounds(times[0], times[-1] + gap)


def windows_of(kind: str, rows: list[Row]) -> Iterator[tuple[Bounds, list[Row]]]:
    """The windows of one group, and the rows that are in each."""
    if kind == "session":
        yield from sessions(rows)
        return
    if kind == "sliding":
        for end in {row.at for row in rows if row.at is not None}:
            start = end - timedelta(hours=1)
            yield Bounds(start, end), [row for row in rows if start < row.at <= end]  # type: ignore[operator]
        return
    found: dict[Bounds, list[Row]] = defaultdict(list)
    for row in rows:
        assert row.at is not None
        for bounds in {
            "tumbling": lambda at: fixed(at, _H, _H, timedelta(minutes=10)),
            "hopping": lambda at: fixed(at, _H, timedelta(minutes=25), timedelta(0)),
            "day": lambda at: [local(at, "day")],
            "month": lambda at: [local(at, "month")],
        }[kind](row.at):
            found[bounds].append(row)
    yield from found.items()


_H = timedelta(hours=1)


def expected(kind: str, rows: Iterable[Row]) -> dict[Any, dict[str, Any]]:
    """What plain Python makes of the rows."""
    groups: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        if row.at is not None:
            groups[row.who].append(row)
    found = {}
    for who, own in groups.items():
        for bounds, inside in windows_of(kind, own):
            amounts = [row.amount for row in inside if row.amount is not None]
            said: dict[str, Any] = {"n": len(inside), "total": sum(amounts) if amounts else None}
            said["mean"] = pytest.approx(mean(amounts)) if amounts else None
            if kind == "sliding":
                said["per_s"] = pytest.approx(len(inside) / 3600)
            else:
                said["least"], said["greatest"] = (
                    min(amounts, default=None),
                    max(amounts, default=None),
                )
                said["kinds"], said["median"] = len(set(amounts)), _median(amounts)
            found[who, *bounds] = said
    return found


def _median(amounts: list[int]) -> Any:
    ordered = sorted(amounts)
    if not ordered:
        return None
    middle = (len(ordered) - 1) / 2
    return pytest.approx((ordered[int(middle)] + ordered[-int(-middle // 1)]) / 2)


class World:
    """A table whose rows come in any order, change their time and group, and go."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.rows: dict[int, Row] = {}
        for _ in range(12):
            self.put()

    def put(self) -> None:
        number = self._random.randint(1, 16)
        minutes = self._random.choice([None, *range(0, 600, 15)])
        at = None if minutes is None else NIGHT + timedelta(minutes=minutes)
        who = self._random.choice([None, "p", "q"])
        self.rows[number] = Row(number, who, self._random.choice([None, 0, 1, 5, 9]), at)

    def change(self) -> list[Row]:
        """Returns rows as they were and as they are."""
        before = dict(self.rows)
        for _ in range(self._random.randint(1, 4)):
            if self.rows and self._random.random() < 0.3:
                del self.rows[self._random.choice(sorted(self.rows))]
            else:
                self.put()
        changed = [row for key, row in before.items() if self.rows.get(key) != row]
        return changed + [row for key, row in self.rows.items() if before.get(key) != row]


def declared(spark: SparkSession, window: Window, measures: Measures) -> Derivation:
    from pyspark.sql.types import StructType

    from projections.spark.derivation.analysis import analyse
    from projections.spark.derivation.definition import definition_of_sql

    text = window.select("events", ("who",), measures, "")
    keys = keys_of(window, ("who",))
    schema = StructType.fromDDL(DDL)
    return analyse(spark, definition_of_sql(spark, text), {"events": schema}, keys)


def shown(frame: DataFrame) -> dict[Any, dict[str, Any]]:
    found = {}
    for row in frame.collect():
        said = row.asDict()
        key = said.pop("who"), *(_utc(said.pop(name)) for name in ("window_start", "window_end"))
        assert key not in found
        found[key] = said
    return found


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_that_are_kept_are_what_plain_python_makes_of_the_rows(
    spark: SparkSession, kind: str
) -> None:
    from projections.derivation.strategy import Keyed
    from projections.spark.derivation.recomputation import affected, gathered, outcome

    window, world = WINDOWS[kind], World(Random(kind))  # noqa: S311  # chance that is repeated
    view = declared(spark, window, OF_FRAMES if kind == "sliding" else ALL)
    assert isinstance(view.strategy, Keyed), view.explain()

    def frames(rows: Iterable[Row]) -> dict[str, DataFrame]:
        return {"events": spark.createDataFrame(list(rows), DDL)}

    kept = shown(view.definition(frames(world.rows.values())))
    assert expected(kind, world.rows.values()) == kept
    for _ in range(3):
        before = frames(world.rows.values())
        changes = frames(world.change())
        after = frames(world.rows.values())
        keys = gathered(spark, affected(view, changes, before, after), few_max=500)
        outcomes = outcome(view, before, after, keys)
        for key in shown_keys(view, outcomes.where("_deleted")):
            kept = {place: said for place, said in kept.items() if key != _place(view, place)}
        renewed = shown(outcomes.where("NOT _deleted").drop("_deleted"))
        places = {_place(view, place) for place in renewed}
        kept = {at: said for at, said in kept.items() if _place(view, at) not in places} | renewed
        assert expected(kind, world.rows.values()) == kept


def shown_keys(view: Derivation, frame: DataFrame) -> list[Any]:
    return [
        tuple(_utc(row[name]) if name != "who" else row[name] for name in view.keys)
        for row in frame.collect()
    ]


def _place(view: Derivation, place: tuple[Any, ...]) -> tuple[Any, ...]:
    """The key of a window, of its group and its bounds."""
    named = dict(zip(("who", "window_start", "window_end"), place, strict=True))
    return tuple(named[name] for name in view.keys)
