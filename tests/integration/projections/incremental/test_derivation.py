"""Derived views in Spark: what is affected, what becomes of it, and that nothing is missed."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.derived.relations import relations
from projections.errors import DuplicateKeyError, ViewQueryError
from projections.incremental.analysis.strategy import Keyed
from tests.oracles.derived_queries import DDL, TABLES, Grammar, SpreadWorld, World, values_sql

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from projections.incremental.spark.analysis import Derivation
    from tests.fix_seeds import Rotation

pytestmark = [pytest.mark.integration, pytest.mark.spark]

ORDERS = "id int, customer int, total decimal(10,2), status string, at timestamp"
ITEMS = "id int, order_id int, sku string, qty int"
CUSTOMERS = "id int, name string"
SCHEMAS = {"orders": ORDERS, "items": ITEMS, "customers": CUSTOMERS}


def analysed(spark: SparkSession, sql: str, *keys: str, **schemas: str) -> Derivation:
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.sql_query import definition_of_sql

    definition = definition_of_sql(spark, sql)
    known = schemas or SCHEMAS
    assert relations(sql) >= {
        name.lower() for name in definition.inputs
    }  # found without Spark when it was declared
    inputs = {name: StructType.fromDDL(known[name]) for name in definition.inputs}
    return analyse(spark, definition, inputs, keys)


def frames(spark: SparkSession, rows: Mapping[str, list[Any]]) -> dict[str, DataFrame]:
    return {table: spark.sql(values_sql(found)) for table, found in rows.items()}


def frozen(value: Any) -> Any:
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


def by_key(view: Derivation, rows: list[Any]) -> dict[Any, Any]:
    found = {}
    for row in rows:
        key = tuple(frozen(row[name]) for name in view.keys)
        assert key not in found, f"the grammar made a key that is not unique: {key}"
        found[key] = frozen(tuple(row))
    return found


def keep(
    spark: SparkSession, view: Derivation, world: World, kept: dict[Any, Any], few_max: int
) -> list[str]:
    """Changes the tables and keeps the view; afterwards it must be what the query gives.

    Returns:
        The inputs of which rows were passed over, as they are not near what changed.
    """
    from projections.incremental.spark.affected_keys import gathered
    from projections.incremental.spark.analysis import keyed
    from projections.incremental.spark.pruned_inputs import near
    from projections.incremental.spark.recompute_keys import affected, outcome

    before = frames(spark, world.rows())
    changes = {name: rows for name, rows in world.change().items() if name in view.inputs}
    passed: list[str] = []
    after = frames(spark, world.rows())
    if changes:
        # what the view takes over from an input that changes alone is enough to keep it by
        way = view.for_changes_of(next(iter(changes))) if len(changes) == 1 else view
        changed = frames(spark, changes)
        known = {name: rows.toArrow() for name, rows in changed.items()}
        nearby = near(way, keyed(way).by, dict.fromkeys(TABLES, ("id",)), known)
        old, new = before, after
        if nearby is not None:
            old, new = nearby.of(before), nearby.of(after)
            passed += [name for name in new if new[name].count() < after[name].count()]
        keys = gathered(spark, affected(way, changed, old, new, nearby), few_max=few_max)
        for row in outcome(way, new, keys, lambda: view.definition(before)).collect():
            key = tuple(frozen(row[name]) for name in view.keys)
            if row["_deleted"] is not False:  # NULL: unless its row follows
                kept.pop(key, None)
            else:
                kept[key] = frozen(tuple(row)[:-1])
    assert by_key(view, view.definition(after).collect()) == kept
    return passed


@pytest.mark.rotating("seed", range(16))
def test_whatever_changes_a_kept_view_is_what_its_query_gives(
    spark: SparkSession, seed: int
) -> None:
    """The oracle is the same query run in batch over the new version, after each batch."""
    keep_through_changes(spark, Random(seed))  # noqa: S311 - chance that can be repeated


@pytest.mark.rotating("number", range(6))
@pytest.mark.parametrize("shape", ["interval_joined", "as_of_joined"])
def test_whatever_changes_a_join_in_time_is_kept_as_its_query_gives_it(
    spark: SparkSession, shape: str, number: int
) -> None:
    keep_through_changes(spark, Random(f"{shape} {number}"), shape)  # noqa: S311 - as above


def test_whatever_changes_a_join_is_kept_from_the_rows_that_are_near(
    spark: SparkSession, rotation: Rotation
) -> None:
    """Times are of many days; rows come late, change their times, have none and are deleted."""
    passed: list[str] = []
    numbers = rotation.of(range(24))
    for number in numbers:
        random = Random(f"near {number}")  # noqa: S311 - as above
        shape = random.choice(["interval_joined", "as_of_joined", "near_joined", "near_joined"])
        world = SpreadWorld(random)
        passed += keep_through_changes(spark, random, shape, world, boundaries=(500, 500, 500, 0))

    assert len(passed) > len(numbers) // 2


def keep_through_changes(
    spark: SparkSession,
    random: Random,
    shape: str = "",
    world: World | None = None,
    boundaries: tuple[int, ...] = (500, 0),
) -> list[str]:
    """Keeps a view; of each boundary is said how many keys become literals before they join."""
    query, world = Grammar(random).query(shape), world or World(random)
    passed: list[str] = []
    view = analysed(spark, query.sql, *query.keys, **dict.fromkeys(world.tables, DDL))
    shown = f"{query} {view.explain()}"
    assert isinstance(view.strategy, Keyed) or not query.plain, shown
    if isinstance(view.strategy, Keyed):
        kept = by_key(view, view.definition(frames(spark, world.rows())).collect())
        for few_max in boundaries:
            try:
                passed += keep(spark, view, world, kept, few_max)
            except AssertionError as error:
                raise AssertionError(shown) from error
    return passed


DOCUMENT = """
    SELECT o.id, c.name, i.items FROM orders o LEFT JOIN customers c ON c.id = o.customer
    LEFT JOIN (SELECT order_id, collect_list(struct(id, sku)) AS items FROM items
               GROUP BY order_id HAVING count(*) > 1) i ON i.order_id = o.id;
"""


def test_explain_names_inputs_keys_and_the_way_of_each_input(spark: SparkSession) -> None:
    explained = analysed(spark, DOCUMENT, "id").explain()

    assert ("keyed", ("id",), ("id",)) == (explained.strategy, explained.keys, explained.by)
    assert explained.paths == {
        "orders": ("its own columns",),
        "customers": ("customers.id = orders.customer",),
        "items": ("its own columns",),
    }


@pytest.mark.parametrize(
    ("sql", "keys", "by"),
    [
        (
            (
                "SELECT * FROM (SELECT id, customer, row_number() OVER"
                " (PARTITION BY customer ORDER BY total DESC, id) AS rn FROM orders) WHERE rn <= 3"
            ),
            ("id",),
            ("customer",),
        ),
        (
            (
                "SELECT coalesce(o.id, i.order_id) AS k, count(*) AS n FROM orders o"
                " FULL JOIN items i ON o.id = i.order_id GROUP BY 1"
            ),
            ("k",),
            ("k",),
        ),
        (
            "SELECT date_trunc('day', at) AS day, sum(total) AS t FROM orders GROUP BY 1",
            ("day",),
            ("day",),
        ),
        (
            "SELECT id, tag FROM orders LATERAL VIEW explode(split(status, ',')) AS tag",
            ("id", "tag"),
            ("id", "tag"),
        ),
        (
            (
                "SELECT o.id, c.id AS who FROM (SELECT id, explode(split(status, ' ')) AS word"
                " FROM orders) o JOIN (SELECT id, explode(split(name, ' ')) AS word FROM customers)"
                " c ON c.word = o.word GROUP BY o.id, c.id"
            ),
            ("id", "who"),
            ("id", "who"),
        ),
        (
            (
                "SELECT o.id FROM orders o WHERE o.total > (SELECT avg(p.total) FROM orders p"
                " WHERE p.customer = o.customer)"
            ),
            ("id",),
            ("id",),
        ),
    ],
    ids=["top-n", "coalesced-key", "truncated-time", "explode", "shared-words", "correlated"],
)
def test_a_view_is_kept_by_its_keys_or_by_columns_that_find_them(
    spark: SparkSession, sql: str, keys: tuple[str, ...], by: tuple[str, ...]
) -> None:
    assert by == analysed(spark, sql, *keys).explain().by


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT id FROM orders ORDER BY total LIMIT 3", "a LIMIT over all rows"),
        ("SELECT id, current_timestamp() AS t FROM orders", "current time"),
        (
            (
                "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM items i WHERE"
                " i.order_id = o.id AND o.at < now())"
            ),
            "current time",
        ),
        ("SELECT id, rand() AS r FROM orders", "rand"),
        ("SELECT id FROM orders WHERE id NOT IN (SELECT order_id FROM items)", "no equality"),
        ("SELECT id FROM orders WHERE total > (SELECT avg(total) FROM orders)", "subquery"),
        ("SELECT o.id FROM orders o LEFT JOIN items i ON o.id < i.qty", "no equality"),
        ("SELECT max(id) AS id FROM orders", "id is the result of an aggregate"),
        (
            "SELECT id FROM (SELECT id, rank() OVER (ORDER BY total) AS r FROM orders) WHERE r < 3",
            "a window is not partitioned by orders.id",
        ),
    ],
    ids=[
        *("limit", "clock", "clock-in-subquery", "rand", "not-in", "scalar", "no-equality"),
        *("aggregated-key", "window-over-all"),
    ],
)
def test_what_cannot_be_followed_is_computed_as_a_whole_and_says_why(
    spark: SparkSession, sql: str, reason: str
) -> None:
    explained = analysed(spark, sql, "id").explain()

    assert "whole" == explained.strategy
    assert reason in (explained.reason or "")


@pytest.mark.parametrize(
    ("sql", "keys", "own"),
    [
        (
            "SELECT o.id, i.id AS item, qty + 1 AS n FROM orders o JOIN items i ON order_id = o.id",
            ("id", "item"),
            {"orders": {"id": "id"}, "items": {"id": "order_id", "item": "id"}},
        ),
        (
            "SELECT o.id, i.id AS item FROM orders o LEFT JOIN items i ON i.order_id = o.id",
            ("id", "item"),
            {"orders": {"id": "id"}, "items": {"id": "order_id"}},
        ),
        (
            "SELECT -o.id AS id, c.id AS customer FROM customers c, orders o WHERE c.id = customer",
            ("id", "customer"),
            {"orders": {"customer": "customer"}, "customers": {"customer": "id"}},
        ),
        (
            "SELECT id, status AS tag FROM orders UNION SELECT customer, status FROM orders",
            ("id", "tag"),
            {"orders": {"tag": "status"}},
        ),
    ],
    ids=["inner", "outer", "computed", "two-uses"],
)
def test_what_a_view_takes_over_from_an_input_is_known(
    spark: SparkSession, sql: str, keys: tuple[str, ...], own: dict[str, dict[str, str]]
) -> None:
    view = analysed(spark, sql, *keys)

    assert isinstance(view.strategy, Keyed)
    assert own == {name: dict(each.columns) for name, each in view.strategy.own.items()}
    for name, columns in own.items():
        alone = view.for_changes_of(name).strategy
        assert isinstance(alone, Keyed)
        assert (tuple(columns), [frozenset()]) == (
            alone.by,
            list({use.passes for use in alone.uses}),
        )


def test_functions_of_frames_are_judged_as_sql_is(spark: SparkSession) -> None:
    from pyspark.sql import functions as fn
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse

    schemas = {"orders": StructType.fromDDL(ORDERS)}

    def pivoted(inputs: Mapping[str, DataFrame]) -> DataFrame:
        return inputs["orders"].groupBy("customer").pivot("status").count()

    def dice(inputs: Mapping[str, DataFrame]) -> DataFrame:
        roll = fn.udf(lambda: 4, "int").asNondeterministic()
        return inputs["orders"].select("customer", roll().alias("roll"))

    def stranger(inputs: Mapping[str, DataFrame]) -> DataFrame:
        other = spark.createDataFrame([(1,)], "customer int")
        return inputs["orders"].join(other, "customer").groupBy("customer").count()

    def judged(definition: Any) -> str | None:
        return analyse(spark, definition, schemas, ["customer"]).explain().reason

    assert "reads rows" in (judged(pivoted) or "")
    assert "deterministic" in (judged(dice) or "")
    assert "besides its inputs" in (judged(stranger) or "")
    assert judged(lambda inputs: inputs["orders"].groupBy("customer").count()) is None


def test_an_input_that_has_no_part_in_the_result_affects_no_key(spark: SparkSession) -> None:
    from projections.incremental.spark.affected_keys import gathered
    from projections.incremental.spark.recompute_keys import affected, outcome

    sql = "SELECT DISTINCT a.s FROM a LEFT JOIN b ON b.x = a.id"
    view = analysed(spark, sql, "s", a=DDL, b=DDL)
    tables = frames(spark, {"a": [(1, 1, 1, "p", None)], "b": [(7, 1, 1, "q", None)]})
    keys = gathered(spark, affected(view, {"b": tables["b"]}, tables, tables))

    assert 0 == keys.count
    assert [] == outcome(view, tables, keys, lambda: view.definition(tables)).collect()


@pytest.mark.parametrize(
    ("sql", "inputs"),
    [
        ("WITH o AS (SELECT * FROM orders) SELECT * FROM o JOIN Items ON true", "orders Items"),
        ("WITH orders AS (SELECT * FROM orders) SELECT * FROM orders", "orders"),
        ("SELECT 1 FROM a WHERE x IN (SELECT y FROM b WHERE EXISTS (SELECT 1 FROM c))", "a b c"),
        ("SELECT * FROM a UNION SELECT * FROM a -- done", "a"),
    ],
    ids=["cte", "cte-of-its-table-s-name", "subqueries", "union"],
)
def test_a_select_names_its_inputs(spark: SparkSession, sql: str, inputs: str) -> None:
    from projections.incremental.spark.sql_query import definition_of_sql

    found = set(definition_of_sql(spark, sql).inputs)
    assert set(inputs.split()) == found
    assert relations(sql) >= {name.lower() for name in found}


@pytest.mark.parametrize(
    "sql",
    [
        *("DROP TABLE orders", "INSERT INTO a SELECT * FROM b", "SELECT 1", "SELECT FROM WHERE"),
        *("SELECT * FROM a; SELECT * FROM b", "SELECT * FROM shop.orders", "SET x = 1", ""),
    ],
)
def test_what_is_not_one_select_over_inputs_is_refused(spark: SparkSession, sql: str) -> None:
    from projections.incremental.spark.sql_query import definition_of_sql

    with pytest.raises(ViewQueryError):
        definition_of_sql(spark, sql)


def test_a_query_that_cannot_be_parsed_is_refused_with_the_place(spark: SparkSession) -> None:
    from projections.incremental.spark.sql_query import definition_of_sql

    with pytest.raises(ViewQueryError, match="not one SELECT") as refused:
        definition_of_sql(spark, "SELECT id FROM orders WHERE total >  GROUP BY id")

    assert "at or near 'BY'" in (refused.value.detail or "")
    assert "(line 1, pos 43)" in (refused.value.detail or "")


@pytest.mark.parametrize("keys", [("nothing",), ()], ids=["unknown", "none"])
def test_a_query_without_its_keys_is_refused(spark: SparkSession, keys: tuple[str, ...]) -> None:
    with pytest.raises(ViewQueryError):
        analysed(spark, "SELECT id FROM orders", *keys)


@pytest.mark.parametrize("name", ["ID", "_deleted", "_version", "_change_type", "_headwater_x"])
def test_a_query_with_columns_that_its_table_cannot_have_is_refused(
    spark: SparkSession, name: str
) -> None:
    with pytest.raises(ViewQueryError, match=f"cannot have a column {name}") as refused:
        analysed(spark, f"SELECT id, id AS {name} FROM orders", "id")  # noqa: S608
    assert "AS" in str(refused.value.hint)


def test_a_key_that_is_not_unique_is_named_and_its_example_is_kept_out_of_the_text(
    spark: SparkSession,
) -> None:
    from projections.job.batch.compare_derived import require_unique

    rows = spark.sql("SELECT * FROM VALUES (4711, NULL), (4711, NULL), (3, 'x') AS t(id, part)")
    require_unique(rows.where("id = 3"), ["id", "part"], "card")
    with pytest.raises(DuplicateKeyError) as caught:
        require_unique(rows, ["id", "part"], "card")

    assert ("4711", "NULL") == caught.value.example
    assert "keys: id, part; one of them has 2 rows" == caught.value.detail
    assert "4711" not in f"{caught.value} {caught.value.hint}"


def test_a_whole_result_is_compared_with_what_is_stored(spark: SparkSession) -> None:
    from projections.incremental.spark.full_diff import differences
    from projections.job.batch.compare_derived import counted, wrong

    # maps, and maps within lists and structs, are equal in whatever order their keys are
    nested = "array(v) AS l, map(1, v, 2, NULL) AS m, array(struct(map('a', map(v, id)) AS n)) AS d"
    turned = "array(v) AS l, map(2, NULL, 1, v) AS m, array(struct(map('a', map(v, id)) AS n)) AS d"
    stored = spark.sql(
        f"SELECT id, v, {nested} FROM VALUES (1, 1), (2, 2), (NULL, 3), (4, 4), (6, 6) AS t(id, v)"  # noqa: S608
    )
    result = spark.sql(
        f"SELECT id, v, {turned} FROM VALUES (1, 1), (2, 9), (NULL, 8), (5, 5), (6, 6) AS t(id, v)"  # noqa: S608
    )
    found = {(r.id, r.v, r["_deleted"]) for r in differences(result, stored, ["id"]).collect()}

    assert {(2, 9, False), (None, 8, False), (5, 5, False), (4, None, True)} == found
    counts = counted(result, stored, ["id"])
    assert (5, 1, 1, 2, 0) == counts
    assert (5, 0, 0, 0, 0) == counted(stored, stored, ["id"])
    named = wrong(result, stored, ["id"], counts, 10)
    assert {
        ((5,), "missing", ()),
        ((4,), "extra", ()),
        ((2,), "different", ("v", "l", "m", "d")),
        ((None,), "different", ("v", "l", "m", "d")),
    } == set(named)
    # few as they may be, they are of each kind
    some = wrong(result, stored, ["id"], counts, 3)
    assert ["missing", "extra", "different"] == [each.verdict for each in some]
    twice = stored.union(stored.where("id IS NULL"))
    doubled = counted(stored, twice, ["id"])
    assert (6, 0, 1, 0, 1) == doubled
    assert [((None,), "duplicated", ())] == wrong(stored, twice, ["id"], doubled, 10)
