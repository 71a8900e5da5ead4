"""Affected keys: of columns of any name, and of days that a calendar of Java skips."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.projections.incremental.test_derivation import analysed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark]

COLUMNS = "id int, `a.b` int, `we``ird` string, `.dot` int, `S p` decimal(10,2), _wanted_id int"
ONE, TWO = Decimal("1.00"), Decimal("2.50")
BEFORE = [(1, 1, "x", 1, ONE, 5), (2, 1, "y", 1, TWO, 6), (4, 3, None, 2, None, None)]
AFTER = [(1, 2, "x", 1, ONE, 5), (3, 1, "y", 1, TWO, 7), (4, 3, None, 2, None, None)]
OTHERS = [(1, 7, "x", 1, ONE, 1), (2, 8, "x", 1, ONE, 2)]
QUERIES = [
    ("SELECT * FROM t", ("id",)),
    ("SELECT id, `a.b`, `we``ird` FROM t", ("id", "a.b")),
    ("SELECT `a.b`, count(*) AS n FROM t GROUP BY `a.b`", ("a.b",)),
    (
        "SELECT `a.b`, `we``ird`, sum(`S p`) AS `s.p` FROM t GROUP BY `a.b`, `we``ird`",
        ("a.b", "we`ird"),
    ),
    ("SELECT t.id, u.`a.b` AS `o.p`, t.`.dot` FROM t LEFT JOIN u ON t.`a.b` = u.id", ("id",)),
    (
        "SELECT `a.b`, row_number() OVER (PARTITION BY `a.b` ORDER BY id) AS `r.n`, id FROM t",
        ("a.b", "r.n"),
    ),
    ("SELECT DISTINCT `we``ird`, _wanted_id FROM t", ("we`ird", "_wanted_id")),
]


@pytest.mark.parametrize("few_max", [500, 0], ids=["few", "many"])
@pytest.mark.parametrize(("sql", "keys"), QUERIES, ids=range(len(QUERIES)))
def test_a_view_of_columns_of_any_name_is_kept(
    spark: SparkSession, sql: str, keys: tuple[str, ...], few_max: int
) -> None:
    from projections.incremental.spark.affected_keys import gathered
    from projections.incremental.spark.analysis import keyed
    from projections.incremental.spark.full_diff import differences
    from projections.incremental.spark.pruned_inputs import near
    from projections.incremental.spark.recompute_keys import affected, outcome

    def by_key(rows: DataFrame) -> dict[Any, Any]:
        return {tuple(row[name] for name in keys): tuple(row) for row in rows.collect()}

    view = analysed(spark, sql, *keys, t=COLUMNS, u=COLUMNS)
    way = view.for_changes_of("t")
    given = {"old": BEFORE, "new": AFTER, "others": OTHERS, "changed": [*BEFORE[:2], *AFTER[:2]]}
    made = {name: spark.createDataFrame(rows, COLUMNS) for name, rows in given.items()}
    old, new = ({"t": made[each], "u": made["others"]} for each in ("old", "new"))
    changes = {"t": made["changed"]}
    identities = dict.fromkeys(("t", "u"), ("id",))
    nearby = near(way, keyed(way).by, identities, {"t": made["changed"].toArrow()})
    read_old, read_new = (old, new) if nearby is None else (nearby.of(old), nearby.of(new))
    kept = by_key(view.definition(old))
    expected = by_key(view.definition(new))
    stored = view.definition(old)

    found = gathered(spark, affected(way, changes, read_old, read_new, nearby), few_max=few_max)
    for row in outcome(way, read_new, found, lambda: stored).collect():
        key = tuple(row[name] for name in keys)
        kept.pop(key, None)
        if row["_deleted"] is False:
            kept[key] = tuple(row)[:-1]

    assert expected == kept != by_key(stored)
    unlike = differences(view.definition(new), stored, keys).collect()
    assert {tuple(row[name] for name in keys) for row in unlike} == {
        key
        for key in expected.keys() | by_key(stored).keys()
        if expected.get(key) != by_key(stored).get(key)
    }


DAYS = ("0001-01-01", "1582-10-04", "1582-10-05", "1582-10-14", "1582-10-15", "9999-12-31")


@pytest.mark.parametrize("kind", ["date", "timestamp"])
def test_a_day_is_the_same_as_a_key(spark: SparkSession, kind: str) -> None:
    from projections.incremental.spark.affected_keys import gathered, named

    values = ", ".join(f"({kind} '{day}')" for day in DAYS)
    rows = spark.sql(f"SELECT * FROM VALUES {values} AS days(day)")  # noqa: S608  # constants

    keys = gathered(spark, rows)

    assert len(DAYS) == keys.count == named(rows, keys, ["day"]).count()
    assert rows.exceptAll(keys.frame).isEmpty()
