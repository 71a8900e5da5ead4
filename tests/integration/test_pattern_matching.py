"""Matches in Spark are those in plain rows, however groups are taken apart, and have a bound."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.derivation.errors import ViewQueryError
from projections.pattern import Pattern, PatternQuery, Step
from tests.event_rows import DDL, EPOCH, NIGHT, Row
from tests.walked_pattern import Event, walked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

ONE, TWO = Step("one", "amount = 1"), Step("two", "amount = 5")
PATTERNS = {
    "in order": Pattern([ONE, TWO], "30 minutes"),
    "overlapping": Pattern([ONE, TWO], "30 minutes", overlapping=True),
    "strict": Pattern([ONE, TWO], "1 hour", strict=True),
    "due": Pattern([ONE, Step("not", "amount = 5", absent=True)], "20 minutes", overlapping=True),
    "between": Pattern(
        [ONE, Step("not", "amount = 9", absent=True), Step("two", "amount = 5", times=2)], "1 hour"
    ),
    "any order": Pattern([ONE, TWO, Step("any", "amount > 0")], "1 hour", any_order=True),
    "beside": Pattern(
        [Step("one", "true"), Step("two", "true", beside=["amount <> one.amount", "id > one.id"])],
        "30 minutes",
        overlapping=True,
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
    """Some that lie together, and some that lie apart."""
    rows = []
    for number in range(300):
        at = NIGHT + timedelta(minutes=5 * random.randint(0, 500))
        amount = random.choice([None, 0, 1, 1, 5, 5, 9])
        rows.append(Row(number, random.choice([None, "p", "q"]), amount, at, None))
    return rows


def expected(pattern: Pattern, rows: list[Row]) -> set[Any]:
    groups: dict[str | None, list[tuple[Any, Row, Event]]] = defaultdict(list)
    for row in rows:
        assert row.at is not None
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


def frame_of(spark: SparkSession, rows: list[Row]) -> DataFrame:
    return spark.createDataFrame(rows, DDL)


@pytest.mark.parametrize("kind", PATTERNS)
def test_groups_that_are_taken_apart_have_the_matches_of_the_whole(
    spark: SparkSession, kind: str
) -> None:
    from projections.spark.derivation.matching import matches_of

    rows = rows_of(Random(kind))  # noqa: S311  # chance that is repeated
    query = PatternQuery(PATTERNS[kind], ("who",), "at", ("id",))

    found = matches_of(frame_of(spark, rows), query).collect()

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

    from projections.spark.derivation import matching
    from projections.spark.derived import query_fault

    monkeypatch.setattr(matching, limit, 20)
    query = PatternQuery(PATTERNS["overlapping"], ("who",), "at", ("id",))
    near = [Row(n, "somebody", 1, NIGHT + timedelta(minutes=n), None) for n in range(30)]

    with pytest.raises(PySparkException) as refused:
        matching.matches_of(frame_of(spark, near), query, "suspects").collect()
    fault = query_fault("suspects", refused.value)

    assert ("HW-P080", False) == (fault.code, fault.retriable)
    assert "view suspects" in fault.message
    assert "more than 20" in str(fault.detail)
    assert "somebody" not in f"{fault.message} {fault.detail} {fault.hint}"

    apart = [row._replace(at=NIGHT + timedelta(minutes=31 * row.id)) for row in near]
    if limit == "ROWS_MAX":
        assert [] == matching.matches_of(frame_of(spark, apart), query, "suspects").collect()


@pytest.mark.parametrize("where", ["false", "amount = 1 AND false", "NULL", "1 > 2"])
def test_a_step_that_is_true_of_no_row_is_refused(spark: SparkSession, where: str) -> None:
    from pyspark.sql.types import StructType

    from projections.spark.derivation.analysis import analyse
    from projections.spark.derivation.matching import matches_of

    steps = [ONE, Step("none", "false", absent=True), Step("two", where)]
    query = PatternQuery(Pattern(steps, "1 hour"), ("who",), "at", ("id",))

    with pytest.raises(ViewQueryError, match="step two of a pattern is true of no row"):
        analyse(
            spark,
            lambda frames: matches_of(frames["events"], query),
            {"events": StructType.fromDDL(DDL)},
            ("who", "match_start", "match_number"),
        )
