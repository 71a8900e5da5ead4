"""The examples by which the project's seeds explain streams, each as the view that it asks for.

All of them are declared in one project and kept by one deriver, through rows that come late, change
and go; after each boundary every view is what plain Python makes of the rows as they are then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from datetime import datetime
from itertools import pairwise
from operator import itemgetter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.oracles.seed_rows import by_chance, corrected, first
from tests.oracles.seed_web import HOUR, MINUTE, NINE, Row, Stage, Web, at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def web(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Web:
    return Web(spark, tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def stages(web: Web) -> list[Stage]:
    """As the seeds tell it; then with what came late, was corrected and taken back; then chance."""
    first(web)
    found = [web.publish()]
    corrected(web)
    found.append(web.publish())
    chance = Random(20)  # noqa: S311  # chance that is repeated
    for _ in range(2):
        by_chance(web, chance)
        found.append(web.publish())
    return found


def counts(rows: Iterable[Row], *names: str) -> dict[Any, int]:
    """How many rows a view counted, by some of its columns."""
    found = {tuple(row[name] for name in names): row["n"] for row in rows}
    return {key[0] if len(key) == 1 else key: n for key, n in found.items()}


def begun(times: Iterable[datetime], width: int, every: int) -> dict[datetime, int]:
    """How many times lie in each window, which begins with every so many minutes of nine."""
    found: Counter[datetime] = Counter()
    for time in times:
        start = NINE + (time - NINE) // (every * MINUTE) * every * MINUTE
        while time < start + width * MINUTE:
            found[start] += 1
            start -= every * MINUTE
    return dict(found)


def times_of(stage: Stage, table: str) -> list[datetime]:
    return [row["at"] for row in stage.tables[table]]


def by_minute(rows: Iterable[Row]) -> dict[float, int]:
    return {(row["window_start"] - NINE) / MINUTE: row["n"] for row in rows}


@pytest.mark.parametrize(
    ("view", "every", "told"),
    [
        ("tumbling", 6, {0: 4, 6: 3, 12: 3, 18: 2}),
        ("sliding", 2, {0: 4, 2: 4, 4: 4, 6: 3}),
        ("hopping", 10, {0: 4, 10: 2, 20: 2}),
    ],
    ids=["tumbling of 6", "sliding of 6 every 2", "hopping of 6 every 10"],
)
def test_003_windows_of_six_minutes(
    stages: list[Stage], view: str, every: int, told: dict[int, int]
) -> None:
    for stage in stages:
        found = counts(stage.views[view], "window_start")
        assert begun(times_of(stage, "events"), 6, every) == found

    counted = by_minute(stages[0].views[view])
    assert told == {minute: counted[minute] for minute in told}
    if view != "sliding":
        assert told == counted
    ends = {row["window_end"] - row["window_start"] for row in stages[0].views[view]}
    assert {6 * MINUTE} == ends


@pytest.mark.parametrize(
    ("view", "width", "told"),
    [
        ("tumbling_minute", 1, {"09:00:00": 2, "09:01:00": 2}),
        ("hopping_minutes", 5, {"09:00:00": 5, "09:01:00": 4, "09:04:00": 4}),
    ],
    ids=["tumbling, 9:00:00 to 9:00:59", "hopping, 9:00:00 to 9:04:59"],
)
def test_004_windows_that_begin_with_minutes(
    stages: list[Stage], view: str, width: int, told: dict[str, int]
) -> None:
    for stage in stages:
        found = counts(stage.views[view], "window_start")
        assert begun(times_of(stage, "orders"), width, 1) == found

    of_that_day = counts(stages[0].views[view], "window_start")
    assert told == {clock: of_that_day[at(clock)] for clock in told}


@pytest.mark.parametrize(
    ("view", "width", "by", "told"),
    [
        ("sliding_minutes", 5, ["shop"], {"09:04:59": 5, "09:05:00": 5}),
        ("last_minutes", 8, [], {"09:07:59": 7, "09:08:00": 7}),
    ],
    ids=["sliding, 9:00:00 to 9:04:59 and 9:00:01 to 9:05:00", "orders in the last 8 minutes"],
)
def test_004_windows_that_end_with_each_order(
    stages: list[Stage], view: str, width: int, by: list[str], told: dict[str, int]
) -> None:
    for stage in stages:
        times: dict[tuple[object, ...], list[datetime]] = defaultdict(list)
        for row in sorted(stage.tables["orders"], key=itemgetter("at")):
            times[tuple(row[name] for name in by)].append(row["at"])
        expected = {
            ((*group, last) if by else last): bisect_right(own, last)
            - bisect_right(own, last - width * MINUTE)
            for group, own in times.items()
            for last in own
        }
        assert expected == counts(stage.views[view], *by, "window_end")

    found = counts(stages[0].views[view], "window_end")
    assert told == {clock: found[at(clock)] for clock in told}


def test_004_sessions_last_as_long_as_something_happens(stages: list[Stage]) -> None:
    for stage in stages:
        expected = {}
        own: dict[int, list[datetime]] = defaultdict(list)
        for row in sorted(stage.tables["orders"], key=lambda row: row["at"]):
            own[row["customer"]].append(row["at"])
        for customer, times in own.items():
            for session in sessions(times):
                key = (customer, session[0], session[-1] + 5 * MINUTE)
                expected[key] = len(session)
        found = counts(stage.views["sessions"], "customer", "window_start", "window_end")
        assert expected == found


def sessions(times: list[datetime]) -> Iterator[list[datetime]]:
    session = times[:1]
    for time in times[1:]:
        if time - session[-1] > 5 * MINUTE:
            yield session
            session = []
        session.append(time)
    yield session


def test_004_orders_of_each_day(stages: list[Stage]) -> None:
    for stage in stages:
        days = Counter(time.date() for time in times_of(stage, "orders"))
        found = counts(stage.views["daily"], "window_start")
        assert days == {start.date(): n for start, n in found.items()}

    assert [8, 1, 1] == [row["n"] for row in sorted(stages[0].views["daily"], key=_start)]


def _start(row: Row) -> datetime:
    start: datetime = row["window_start"]
    return start


def test_001_a_straggler_corrects_its_window_or_is_counted_and_kept_beside(
    stages: list[Stage],
) -> None:
    for stage in stages:
        in_time, late = Counter[datetime](), Counter[datetime]()
        beside = {}
        for row in stage.tables["events"]:
            start = NINE + (row["at"] - NINE) // (6 * MINUTE) * 6 * MINUTE
            came, end = row["came"], start + 6 * MINUTE
            if came is not None and came >= end + 2 * MINUTE:
                late[start] += 1
                beside[row["id"]] = (came - end).total_seconds()
            else:
                in_time[start] += 1
        expected = {start: (in_time[start], late[start]) for start in in_time | late}
        settled = stage.views["settled"]
        assert expected == {row["window_start"]: (row["n"], row["late"]) for row in settled}
        assert beside == {row["id"]: row["late_by_s"] for row in stage.views["stragglers"]}

    assert 5 - 1 == by_minute(stages[1].views["tumbling"])[0]  # one came, another was moved away
    assert {50: 120.0} == {row["id"]: row["late_by_s"] for row in stages[1].views["stragglers"]}


def test_a_device_that_is_silent_or_a_year_ahead_makes_no_other_late(stages: list[Stage]) -> None:
    a_year_on = 365 * 24 * HOUR
    of_a = {at("08:00:00"): (1, 0), at("09:00:00"): (1, 0)}
    wrong = {at("09:00:00") + a_year_on: (1, 0)}

    for stage in stages:
        if stage is not stages[0]:  # "quiet" has sent nothing since, and "ahead" goes on
            of_a[at("09:01:00")] = (1, 0)
            wrong[at("09:01:00") + a_year_on] = (1, 0)
        for view, expected in (("signals_per_minute", of_a | wrong), ("sound_per_minute", of_a)):
            found = stage.views[view]
            assert expected == {row["window_start"]: (row["n"], row["late"]) for row in found}


def test_004_click_through_by_session_within_an_hour_counts_searches_without_a_click(
    stages: list[Stage],
) -> None:
    for stage in stages:
        expected, terms = {}, defaultdict(list)
        for search in stage.tables["searches"]:
            clicks = [
                click["at"]
                for click in stage.tables["clicks"]
                if click["session"] == search["session"]
                and search["at"] <= click["at"] <= search["at"] + HOUR
            ]
            expected[search["id"]] = (min(clicks, default=None), len(clicks))
            terms[search["term"]].append(bool(clicks))
        found = stage.views["found"]
        assert expected == {row["id"]: (row["clicked_at"], row["clicks"]) for row in found}
        rates = {term: (len(each), sum(each) / len(each)) for term, each in terms.items()}
        through = stage.views["click_through"]
        assert rates == {row["term"]: (row["searches"], row["rate"]) for row in through}

    rates = [{row["term"]: row["rate"] for row in each.views["click_through"]} for each in stages]
    assert [{"chair": 0.5, "desk": 0.5}, {"chair": 1.0, "desk": 0.5}] == rates[:2]


def test_004_clicks_have_the_name_of_who_clicked_as_of_then(stages: list[Stage]) -> None:
    for stage in stages:
        names = {row["id"]: row["name"] for row in stage.tables["people"]}
        now, then = {}, {}
        for click in stage.tables["clicks"]:
            now[click["id"]] = names.get(click["person"])
            states = (
                row["name"]
                for row in stage.tables["people_history"]
                if row["id"] == click["person"]
                and row["valid_from"] <= click["at"]
                and (row["valid_to"] is None or click["at"] < row["valid_to"])
            )
            then[click["id"]] = next(states, None)
        assert now == {row["id"]: row["name"] for row in stage.views["named_now"]}
        assert then == {row["id"]: row["name"] for row in stage.views["named_then"]}

    named = {row["id"]: row["name"] for row in stages[0].views["named_then"]}
    assert {1: "Ann", 2: "Anna", 3: None} == named


def test_003_orders_and_payments_are_joined_by_order_within_half_an_hour(
    stages: list[Stage],
) -> None:
    for stage in stages:
        expected, used = set(), set()
        for order in stage.tables["orders"]:
            own = [
                (payment["id"], payment["amount"])
                for payment in stage.tables["payments"]
                if payment["order_id"] == order["id"]
                and order["at"] <= payment["at"] <= order["at"] + 30 * MINUTE
            ]
            expected |= {(order["id"], *each) for each in own or [(None, None)]}
            used |= {payment for payment, _ in own}
        assert expected == {tuple(row.values()) for row in stage.views["paid"]}
        unused = {row["id"] for row in stage.tables["payments"]} - used
        assert unused == {row["id"] for row in stage.views["paid_for_nothing"]}

    nothing = [{row["id"] for row in stage.views["paid_for_nothing"]} for stage in stages]
    assert [{3, 4}, set()] == nothing[:2]  # its order came; what was too late was corrected


def test_000_what_ships_after_payment_is_found_though_the_broker_gives_them_in_the_other_order(
    stages: list[Stage],
) -> None:
    for stage in stages:
        rows = [row for row in stage.tables["steps"] if row["kind"] != "asked"]
        rows.sort(key=lambda row: (row["at"], row["kind"]))  # of one time, as the pattern has them
        unpaid = {
            row["id"]
            for row in rows
            if row["kind"] == "shipped"
            and not any(
                each["kind"] == "paid"
                and each["order_id"] == row["order_id"]
                and each["at"] <= row["at"]
                for each in rows
            )
        }
        assert unpaid == {row["id"] for row in stage.views["shipped_unpaid"]}
        assert sorted(shipped_after_payment(rows)) == sorted(
            (row["order_id"], row["match_start"], row["match_end"])
            for row in stage.views["shipped_after_payment"]
        )

    before, after = ([row["rows"] for row in s.views["shipped_after_payment"]] for s in stages[:2])
    assert [] == before
    assert [[3, 4]] == [[each["id"] for each in match] for match in after]


def shipped_after_payment(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    """From each payment to the next that ships; what is between them begins no other."""
    for order in {row["order_id"] for row in rows}:
        began = None
        for row in rows:
            if row["order_id"] != order:
                continue
            if began is None and row["kind"] == "paid":
                began = row["at"]
            elif began is not None and row["kind"] == "shipped":
                yield order, began, row["at"]
                began = None


def test_an_order_without_a_payment_in_half_an_hour_is_found_across_two_tables(
    stages: list[Stage],
) -> None:
    for stage in stages:
        expected = {
            (order["id"], order["at"] + 30 * MINUTE)
            for order in stage.tables["orders"]
            if not any(
                payment["order_id"] == order["id"]
                and order["at"] <= payment["at"] <= order["at"] + 30 * MINUTE
                for payment in stage.tables["payments"]
            )
        }
        assert expected == {(row["order_id"], row["due_at"]) for row in stage.views["unpaid"]}

    due = [{row["order_id"] for row in each.views["unpaid"]} for each in stages]
    assert (4 in due[0], 4 in due[1]) == (True, False)  # what was a second too late is corrected
    assert (2 in due[0], 2 in due[1]) == (False, True)  # and what had been paid is taken back


def test_declined_payments_before_a_large_order_are_found_across_two_tables(
    stages: list[Stage],
) -> None:
    for stage in stages:
        expected = []
        for customer in (0, 1):
            declined = sorted(
                (charge["at"], charge["id"])
                for charge in stage.tables["charges"]
                if charge["customer"] == customer and charge["status"] == "declined"
            )
            large = sorted(
                (purchase["at"], purchase["id"])
                for purchase in stage.tables["purchases"]
                if purchase["customer"] == customer and purchase["amount"] > 500
            )
            for one, two in pairwise(declined):
                after = [each for each in large if two[0] <= each[0] <= one[0] + HOUR]
                if after:
                    expected.append((customer, one[1], two[1], after[0][1]))
        found = [
            (row["customer"], *(each["id"] for each in row["rows"]))
            for row in stage.views["suspects"]
        ]
        assert sorted(expected) == sorted(found)

    first_seen, then = ([row["rows"] for row in s.views["suspects"]] for s in stages[:2])
    assert [] == first_seen
    rows = [("charge", 1), ("charge", 2), ("purchase", 1)]
    assert [rows] == [[(each["kind"], each["id"]) for each in match] for match in then]


def test_a_timeline_is_kept_under_changes_of_posts_and_of_follows(stages: list[Stage]) -> None:
    for stage in stages:
        pairs = [
            (follow["follower"], post)
            for follow in stage.tables["follows"]
            for post in stage.tables["posts"]
            if post["author"] == follow["followee"]
        ]
        expected = {(who, post["id"], post["author"], post["text"]) for who, post in pairs}
        assert expected == {tuple(row.values()) for row in stage.views["timeline"]}
        newest = {
            who: sorted((post["at"] for each, post in pairs if each == who), reverse=True)[:2]
            for who, _ in pairs
        }
        posts = {post["id"]: post["at"] for post in stage.tables["posts"]}
        assert newest == {
            row["follower"]: [posts[each["post"]] for each in row["newest"]]
            for row in stage.views["timelines"]
        }

    first_seen, then = ({row["post"] for row in s.views["timeline"]} for s in stages[:2])
    assert {1} == first_seen
    assert {2, 3} == then


def test_each_of_the_examples_with_groups_is_kept_by_its_keys(
    web: Web, stages: list[Stage]
) -> None:
    said = {maintainer.view.name: maintainer.explanation for maintainer in web.deriver.maintainers}

    assert len(said) > 20
    by_chance_there = {name for stage in stages[2:] for name, rows in stage.views.items() if rows}
    assert {*said} == by_chance_there  # nothing is compared that is empty throughout
    others = {name for name, each in said.items() if each is None or each.strategy != "keyed"}
    assert {"last_minutes"} == others  # all orders are one group, kept from a change's time on
