"""Standing queries in Spark: kept beside documents and queries that change, and never missed."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from projections.definition.operators.standing_query import Percolation
from projections.errors import ViewQueryError
from projections.incremental.analysis.strategy import Keyed
from tests.support.frames import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from projections.incremental.spark.analysis import Derivation

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

DOCUMENTS = (
    "sku string, title string, about string, price decimal(10,2), sold boolean, tags array<string>"
)
QUERIES = "id int, person int, wanted string"
HOW = Percolation("wanted", ("id",), ("sku",), ("title", "about"), ("title",))
WORDS = ("red", "Blue", "arm", "chair", "table", "TABLET", "café")
ASKED = (
    *("red", "arm chair", '"arm chair"', "tab*", "red | blue", "red -chair", "-red", "*"),
    *("price<5", "price>=5 red", "sold:true", "sold:false (chair | table)", "tags:new red"),
    *('title:"red chair"', "CAFÉ", "tags!=new arm", "(red arm) | (blue chair price>2)"),
)
UNREADABLE = ("", "   ", '"open', "(red", "weight:4", "price:cheap", "sold<true", "- red", None)

Rows = dict[str, tuple[Any, ...]]


def plainly(query: str, row: tuple[Any, ...]) -> bool:
    """What each of the queries asks, said once more in plain Python."""
    _, title, about, price, sold, tags = row
    texts = [(text or "").lower().split() for text in (title, about)]

    def has(word: str) -> bool:
        return any(word in text for text in texts)

    return {
        "red": has("red"),
        "arm chair": has("arm") and has("chair"),
        '"arm chair"': any(pair == ("arm", "chair") for text in texts for pair in pairwise(text)),
        "tab*": has("table") or has("tablet"),
        "red | blue": has("red") or has("blue"),
        "red -chair": has("red") and not has("chair"),
        "-red": not has("red"),
        "*": True,
        "price<5": price is not None and price < 5,
        "price>=5 red": price is not None and price >= 5 and has("red"),
        "sold:true": sold is True,
        "sold:false (chair | table)": sold is False and (has("chair") or has("table")),
        "tags:new red": tags is not None and "new" in tags and has("red"),
        'title:"red chair"': title == "red chair",
        "CAFÉ": has("café"),
        "tags!=new arm": tags is not None and "new" not in tags and has("arm"),
        "(red arm) | (blue chair price>2)": (has("red") and has("arm"))
        or (has("blue") and has("chair") and price is not None and price > 2),
    }[query]


class World:
    """Documents and queries that change, some of them at once."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.documents: dict[Any, tuple[Any, ...]] = {}
        self.queries: dict[Any, tuple[Any, ...]] = {}
        for _ in range(12):
            self.put_document()
            self.put_query()

    def put_document(self) -> None:
        from decimal import Decimal

        pick = self.random.choice
        title, about = (
            pick([None, "red chair", " ".join(self.random.choices(WORDS, k=3))]) for _ in range(2)
        )
        sku = f"s{self.random.randint(1, 15)}"
        price = pick([None, Decimal(self.random.randint(1, 9))])
        tags = pick([None, [], ["new"], ["old", "new"]])
        self.documents[sku] = (sku, title, about, price, pick([None, True, False]), tags)

    def put_query(self) -> None:
        number = self.random.randint(1, 30)
        wanted = self.random.choice([*ASKED, *ASKED, *UNREADABLE])
        self.queries[number] = (number, self.random.randint(1, 3), wanted)

    def change(self) -> tuple[list[Any], list[Any]]:
        """Changes some rows; returns those of documents and of queries, before and after."""
        changed: list[list[Any]] = []
        sides = self.random.choice([(True, False), (False, True), (True, True)])
        for rows, put, chosen in (
            (self.documents, self.put_document, sides[0]),
            (self.queries, self.put_query, sides[1]),
        ):
            before = dict(rows)
            for _ in range(self.random.randint(1, 3) if chosen else 0):
                if rows and self.random.random() < 0.3:
                    rows.pop(self.random.choice(list(rows)))
                else:
                    put()
            moved = [old for key, old in before.items() if rows.get(key) != old]
            moved += [new for key, new in rows.items() if before.get(key) != new]
            changed.append(moved)
        return changed[0], changed[1]

    def expected(self) -> set[tuple[Any, ...]]:
        return {
            (number, sku, document[1])
            for number, (_, _, wanted) in self.queries.items()
            if wanted not in UNREADABLE
            for sku, document in self.documents.items()
            if plainly(wanted, document)
        }


def view_of(spark: SparkSession, how: Percolation) -> Derivation:
    from pyspark.sql.types import StructType

    from projections.incremental.spark.analysis import analyse
    from projections.incremental.spark.percolator import percolated

    schemas = {"documents": StructType.fromDDL(DOCUMENTS), "queries": StructType.fromDDL(QUERIES)}
    return analyse(
        spark,
        lambda frames: percolated(frames["documents"], frames["queries"], how),
        schemas,
        how.keys,
    )


def frames(spark: SparkSession, documents: Any, queries: Any) -> dict[str, DataFrame]:
    return {
        "documents": frame_of(spark, documents, DOCUMENTS),
        "queries": frame_of(spark, queries, QUERIES),
    }


@pytest.mark.parametrize("few_max", [500, 0], ids=["few", "many"])
def test_matches_that_are_kept_are_what_plain_python_finds(
    spark: SparkSession, few_max: int
) -> None:
    from projections.incremental.spark.affected_keys import gathered
    from projections.incremental.spark.recompute_keys import affected, outcome

    view, world = view_of(spark, HOW), World(Random(few_max))  # noqa: S311 - can be repeated
    assert isinstance(view.strategy, Keyed), view.explain()
    assert ("query_id", "sku") == view.strategy.by
    before = frames(spark, world.documents.values(), world.queries.values())
    kept = {tuple(row)[:2]: tuple(row) for row in view.definition(before).collect()}
    assert world.expected() == set(kept.values())
    sizes = set()
    for _ in range(8):
        documents, queries = world.change()
        after = frames(spark, world.documents.values(), world.queries.values())
        moved = frames(spark, documents, queries)
        changes = {
            name: moved[name]
            for name, rows in (("documents", documents), ("queries", queries))
            if rows
        }
        if changes:
            keys = gathered(spark, affected(view, changes, before, after), few_max=few_max)
            stored = partial(view.definition, before)
            for row in outcome(view, after, keys, stored).collect():
                if row["_deleted"] is not False:  # NULL: unless its row follows
                    kept.pop(tuple(row)[:2], None)
                else:
                    kept[tuple(row)[:2]] = tuple(row)[:-1]
        assert world.expected() == set(kept.values())
        sizes.add(len(kept))
        before = after
    assert len(sizes) > 3


def test_a_changed_document_is_compared_with_those_queries_only_that_share_a_term(
    spark: SparkSession,
) -> None:
    from projections.incremental.spark.recompute_keys import affected

    view = view_of(spark, HOW)
    stands = frames(
        spark,
        [("s1", "red chair", None, None, None, None)],
        [(1, 1, "red"), (2, 1, "green"), (3, 1, "chair -red"), (4, 1, "price<2")],
    )
    changed = {"documents": stands["documents"]}

    found = {tuple(row) for row in affected(view, changed, stands, stands).collect()}

    assert {(1, "s1"), (3, "s1"), (4, "s1")} == found


def test_queries_that_cannot_be_read_are_rows_with_the_reason(spark: SparkSession) -> None:
    how = Percolation("wanted", ("id",), (), (), refused=True)
    wanted = [*UNREADABLE, *ASKED]
    given = frames(spark, [], [(n, 1, text) for n, text in enumerate(wanted)])

    found = {
        row["query_id"]: row["reason"] for row in view_of(spark, how).definition(given).collect()
    }

    assert {*range(len(UNREADABLE))} == set(found)
    assert "weight" in found[UNREADABLE.index("weight:4")]
    assert "fields: about, price, sku, sold, tags, title" in found[UNREADABLE.index("weight:4")]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (Percolation("asked", ("id",), ("sku",), ("title",)), "the queries have no column asked"),
        (Percolation("wanted", ("id",), ("sku",), ("price",)), "column price is not a text"),
        (Percolation("person", ("id",), ("sku",), ("title",)), "column person is not a text"),
        (Percolation("wanted", ("id",), ("no",), ("title",)), "the documents have no column no"),
    ],
)
def test_columns_that_are_not_there_are_named(
    spark: SparkSession, how: Percolation, said: str
) -> None:
    with pytest.raises(ViewQueryError, match=said):
        view_of(spark, how)
