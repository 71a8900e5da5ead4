"""Matches in Spark are those in plain rows, however groups are taken apart, and have a bound."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.operators.pattern import Pattern, PatternQuery, Step
from projections.errors import ViewQueryError
from tests.oracles.event_rows import ABSURD, DDL, EPOCH, NIGHT, Row
from tests.oracles.walked_pattern import Event, walked
from tests.support.frames import frame_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

ONE, TWO = Step("one", "amount = 1"), Step("two", "amount = 5")
PATTERNS = {
    "in order": Pattern([ONE, TWO], "30 minutes"),
    "to next row": Pattern([ONE, TWO], "30 minutes", skip="to next row"),
    "to a step": Pattern(
        [ONE, Step("more", "true", 2, beside=["amount >= one.amount"])],
        "1 hour",
        skip="to first more",
    ),
    "to its last": Pattern(
        [Step("one", "true"), Step("more", "true", beside=["amount > 2 * one.amount + 0.5"])],
        "1 hour",
        skip="to last more",
    ),
    "strict": Pattern([ONE, TWO], "1 hour", strict=True),
    "due": Pattern([ONE, Step("not", "amount = 5", absent=True)], "20 minutes", skip="to next row"),
    "between": Pattern(
        [ONE, Step("not", "amount = 9", absent=True), Step("two", "amount = 5", times=2)], "1 hour"
    ),
    "any order": Pattern([ONE, TWO, Step("any", "amount > 0")], "1 hour", any_order=True),
    "beside": Pattern(
        [Step("one", "true"), Step("two", "true", beside=["amount <> one.amount", "id > one.id"])],
        "30 minutes",
        skip="to next row",
    ),
}
FITS = {
    "amount = 1": lambda amount: amount == 1,
    "amount = 5": lambda amount: amount == 5,
    "amount = 9": lambda amount: amount == 9,
    "amount > 0": lambda amount: amount is not None and amount > 0,
    "true": lambda _: True,
}


def rows_of(random: Random) -> list[Row]:
    """Some that lie together, some that lie apart, and some without a time that counts."""
    rows = []
    for number in range(300):
        at: datetime | None = NIGHT + timedelta(minutes=5 * random.randint(0, 500))
        if number % 10 == 0:
            at = random.choice([None, *ABSURD])
        amount = random.choice([None, 0, 1, 1, 5, 5, 9])
        rows.append(Row(number, random.choice([None, "p", "q"]), amount, at, None))
    return rows


def expected(pattern: Pattern, rows: list[Row]) -> set[Any]:
    groups: dict[str | None, list[tuple[Any, Row, Event]]] = defaultdict(list)
    for row in rows:
        if row.at is None or row.at in ABSURD:
            continue
        at = (row.at - EPOCH) // timedelta(microseconds=1)
        fits = [FITS[step.where](row.amount) for step in pattern.steps]
        # as Spark orders them: what is compared, then what is kept; NULL first
        values = (row.amount is not None, row.amount or 0, row.id) if pattern.compared else row.id
        event = Event(at, fits, {"amount": row.amount, "id": row.id})
        groups[row.who].append(((at, [not fit for fit in fits], values), row, event))
    found = set()
    for who, group in groups.items():
        group.sort(key=lambda each: each[0])
        numbers: Counter[Any] = Counter()
        for match in walked(pattern, [event for *_, event in group]):
            taken = tuple((step, group[place][1].id) for step, place in match.taken)
            begins = group[match.taken[0][1]][1].at
            numbers[begins] += 1
            due = None if match.due is None else EPOCH + timedelta(microseconds=match.due)
            found.add((who, taken, begins, numbers[begins], due))
    return found


@pytest.mark.parametrize("kind", PATTERNS)
def test_groups_that_are_taken_apart_have_the_matches_of_the_whole(
    spark: SparkSession, kind: str
) -> None:
    from projections.incremental.spark.pattern_matching import matches_of

    rows = rows_of(Random(kind))  # noqa: S311  # chance that is repeated
    query = PatternQuery(PATTERNS[kind], ("who",), "at", ("id",))

    found = matches_of(frame_of(spark, rows, DDL), query).collect()

    wanted = expected(query.pattern, rows)
    assert len(wanted) > 3
    assert len(wanted) == len(found)
    assert wanted == {
        (
            row["who"],
            tuple((each["step"], each["id"]) for each in row["rows"]),
            row["match_start"].astimezone(EPOCH.tzinfo),
            row["match_number"],
            row["due_at"] and row["due_at"].astimezone(EPOCH.tzinfo),
        )
        for row in found
    }


@pytest.mark.parametrize("limit", ["ROWS_MAX", "LOOKUPS_MAX"])
def test_a_group_of_which_too_much_lies_together_is_refused_without_its_values(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    from pyspark.errors import PySparkException

    from projections.incremental.spark import pattern_matching
    from projections.incremental.spark.query_fault import query_fault

    monkeypatch.setattr(pattern_matching, limit, 20)
    query = PatternQuery(PATTERNS["to next row"], ("who",), "at", ("id",))
    times = [NIGHT + timedelta(minutes=n) for n in range(30)]
    near = [Row(n, "somebody", 5 if n == 29 else 1, at, None) for n, at in enumerate(times)]

    with pytest.raises(PySparkException) as refused:
        pattern_matching.matches_of(frame_of(spark, near, DDL), query, "suspects").collect()
    fault = query_fault("suspects", refused.value)

    assert ("HW-P080", False) == (fault.code, fault.retriable)
    assert "view suspects" in fault.message
    assert "more than 20" in str(fault.detail)
    assert "somebody" not in f"{fault.message} {fault.detail} {fault.hint}"

    apart = [row._replace(at=NIGHT + timedelta(minutes=31 * row.id)) for row in near]
    if limit == "ROWS_MAX":
        assert (
            []
            == pattern_matching.matches_of(frame_of(spark, apart, DDL), query, "suspects").collect()
        )


def bound(spark: SparkSession, where: str, rows: str = "", ddl: str = DDL) -> tuple[str, ...]:
    """Declares a pattern of which a step has a condition, and binds it; returns its columns."""
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.pattern_matching import matches_of

    steps = [ONE, Step("none", "false", absent=True), Step("two", where)]
    query = PatternQuery(Pattern(steps, "1 hour"), ("who",), "at", ("id",), rows)
    found = analyse(
        spark,
        lambda frames: matches_of(frames["events"], query),
        {"events": StructType.fromDDL(ddl)},
        ("who", "match_start", "match_number"),
    )
    return found.columns


SORTS = f"{DDL}, status string, price decimal(10, 2), weight double, ok boolean, day date"


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("false", ""),
        ("amount = 1 AND false", ""),
        ("NULL", ""),
        ("1 > 2", ""),
        ("status = 'a' AND status = 'b'", ""),
        ("status = 'a' AND status <> 'a'", ""),
        ("(status = 'a' OR status = 'b') AND status = 'c'", ""),
        ("status IN ('a', 'b') AND status = 'c'", ""),
        ("status IN ('a', 'b') AND status IN ('c', 'd')", ""),
        ("status IS NULL AND status = 'a'", ""),
        ("ok AND NOT ok", ""),
        ("amount = 5 AND amount > 7", ""),
        ("amount > 5 AND amount <= 5", ""),
        ("amount > 9 AND ok AND 5 > amount", ""),
        ("price BETWEEN 5 AND 3", ""),
        ("abs(weight) >= 2 AND abs(weight) < 1.5", ""),
        ("at >= '2026-01-02' AND at < '2026-01-01'", ""),
        ("day > '2026-01-02' AND day IN ('2026-01-01', '2026-01-02')", ""),
        ("amount > 5 AND amount < 3 OR status = 'a' AND status IN ('b', 'c')", ""),
        ("status = 'declined'", "status = 'paid'"),
        ("price < 10", "price >= 10"),
    ],
)
def test_a_step_that_is_true_of_no_row_is_refused(
    spark: SparkSession, where: str, rows: str
) -> None:
    with pytest.raises(ViewQueryError, match="step two of a pattern matches no row") as refused:
        bound(spark, where, rows, SORTS)
    assert f"where: {where}" in str(refused.value.detail)
    assert not rows or rows in str(refused.value.detail)


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("status = 'a' OR status = 'b'", ""),
        ("status IN ('a', 'b') AND status IN ('b', 'c')", ""),
        ("status IS NULL OR status = 'a'", ""),
        ("status IS NULL AND amount = 1", ""),
        ("NOT (status = 'a' AND status = 'b')", ""),
        ("amount >= 5 AND amount <= 5", ""),
        ("amount > 5 AND amount < 7", ""),
        ("amount > 9 AND weight < 5", ""),
        ("price BETWEEN 3 AND 5", ""),
        ("amount > 5 AND amount < 3 OR status = 'a'", ""),
        ("weight > 1 AND weight <> 2", ""),
        ("status = 'paid'", "status = 'paid'"),
        ("price > 10", "price >= 10"),
    ],
)
def test_a_step_that_may_be_true_of_a_row_is_taken(
    spark: SparkSession, where: str, rows: str
) -> None:
    assert {"match_start", "match_end"} <= set(bound(spark, where, rows, SORTS))


def test_a_step_may_be_a_column_and_be_called_by_its_name(spark: SparkSession) -> None:
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.pattern_matching import matches_of

    ddl = "who string, declined boolean, large boolean, at timestamp"
    query = PatternQuery(
        Pattern([Step("declined", "declined"), Step("large", "large")], "1 hour"),
        ("who",),
        "at",
        (),
    )
    view = analyse(
        spark,
        lambda frames: matches_of(frames["events"], query),
        {"events": StructType.fromDDL(ddl)},
        ("who", "match_start", "match_number"),
    )
    rows = [("p", True, False, NIGHT), ("p", False, True, NIGHT + timedelta(minutes=1))]

    found = view.definition({"events": frame_of(spark, rows, ddl)}).collect()

    assert ["p"] == [row["who"] for row in found]


def test_rows_without_a_usable_time_have_no_part_in_a_match(spark: SparkSession) -> None:
    """What they begin would be due, or end, where no time can be written."""
    from projections.incremental.spark.pattern_matching import matches_of

    last = datetime(9998, 12, 31, 23, tzinfo=UTC)
    times = [None, datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), NIGHT, last]
    rows = [Row(number, "p", 1, at, None) for number, at in enumerate(times)]

    def found(within: str) -> list[tuple[Any, ...]]:
        pattern = Pattern([ONE, Step("none", "amount = 5", absent=True)], within, strict=True)
        query = PatternQuery(pattern, ("who",), "at", ("id",))
        shown = matches_of(frame_of(spark, rows, DDL), query).selectExpr(
            "rows[0].id", "CAST(due_at AS STRING)"
        )
        return sorted(map(tuple, shown.collect()))

    due = [(3, "2026-10-24 22:00:00"), (4, "9999-01-01 01:00:00")]
    assert due == found("2 hours")
    assert [(3, "2028-10-23 20:00:00")] == found("730 days")


KINDS = {"d": "DECIMAL(38, 18)", "n": "BIGINT", "s": "SMALLINT", "f": "DOUBLE"}


@pytest.mark.parametrize(
    ("beside", "first", "size", "holds"),
    [
        ("d = 0.1 * one.d", "0.000000000000000030", "0.000000000000000003", True),
        ("d > 3 * one.d", "11111111111111111111.1", "33333333333333333333.3", False),
        ("d >= 3 * one.d - 0.1", "11111111111111111111.1", "33333333333333333333.2", True),
        ("d <> 2 * one.d", None, "1", False),
        ("n > 1.5 * one.n", "9000000000000000000", "9223372036854775807", False),
        ("n >= one.n - 1", "9007199254740993", "9007199254740992", True),
        ("s < -1 * one.s", "32767", "-32768", True),
        ("f = 0.1 * one.f", "3", "0.30000000000000004", True),
        ("f > 2 * one.f", "NaN", "1", False),
    ],
)
def test_numbers_are_compared_as_their_columns_hold_them(
    spark: SparkSession, beside: str, first: str | None, size: str, *, holds: bool
) -> None:
    from projections.incremental.spark.pattern_matching import matches_of

    column = beside[0]
    steps = [Step("one", "id = 1"), Step("two", "id = 2", beside=[beside])]
    query = PatternQuery(Pattern(steps, "1 hour"), ("who",), "at", ("id",))
    given = [(1, "p", NIGHT, first), (2, "p", NIGHT + timedelta(minutes=1), size)]
    frame = spark.createDataFrame(given, "id INT, who STRING, at TIMESTAMP, text STRING")
    number = f"CAST(text AS {KINDS[column]}) AS {column}"

    found = matches_of(frame.selectExpr("id", "who", "at", number), query)

    assert int(holds) == len(found.collect())


COLUMNS = "amount INT, at TIMESTAMP, d DECIMAL(5, 2), t TIMESTAMP, day DATE, who STRING"


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        (
            "d > 10 * one.who",
            "needs a number to compute: d > 10 \\* one.who: d is a number, who a str",
        ),
        ("t > one.t + 60", "needs a number to compute: .* t is a time, t a time"),
        ("day >= one.day + 1", "needs a number to compute: .* day is a date"),
        ("who = one.d", "compares unlike types: who = one.d: who is a string, d a number"),
        ("day < one.t", "compares unlike types: .* day is a date, t a time"),
    ],
)
def test_what_cannot_be_compared_is_refused_when_the_view_is_bound(
    spark: SparkSession, beside: str, why: str
) -> None:
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.pattern_matching import matches_of

    steps = [ONE, Step("two", "amount = 5", beside=[beside])]
    query = PatternQuery(Pattern(steps, "1 hour"), ("who",), "at", ())
    schema = {"events": StructType.fromDDL(COLUMNS)}

    with pytest.raises(ViewQueryError) as refused:
        analyse(
            spark,
            lambda frames: matches_of(frames["events"], query),
            schema,
            ("who", "match_start", "match_number"),
        )
    assert re.search(
        f"step two of a pattern {why}", f"{refused.value.message}: {refused.value.detail}"
    )
