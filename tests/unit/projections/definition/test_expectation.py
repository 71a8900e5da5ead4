"""Expectations: what may be said, what conditions mean, and what a row comes to."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from cdc.table import Column, ColumnKind, TableName, TableSchema
from headwater import expect, source, view
from projections.changes.applier import TaskApplier
from projections.definition.expectations.checker import Inspection, types_of
from projections.definition.expectations.evaluator import Type, fitted
from projections.definition.expectations.expectation import deletes
from projections.definition.expectations.parser import parse
from projections.definition.registry import load
from projections.errors import (
    ConditionError,
    DeclarationError,
    PlanError,
    ViewHaltedError,
)
from projections.incremental.expectation_filter import ExpectationFilter
from projections.planning.view_plan import plan_views
from tests.fix_log import KEYS, PLAN, TABLE, TOPIC, Source, numbered
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from pathlib import Path

    from projections.definition.expectations.expectation import Expectation
    from projections.planning.view_plan import ViewPlan

COLUMNS = {
    "total": Type.NUMBER,
    "weight": Type.NUMBER,
    "note": Type.TEXT,
    "Paid": Type.BOOLEAN,
    "day": Type.DATE,
    "at": Type.TIMESTAMPTZ,
    "raw": Type.OTHER,
    "code": Type.PADDED,
    "email": Type.CASELESS,
    "ref": Type.UUID,
    "lasts": Type.PRINTED,
}
ROW: dict[str, Any] = {
    "total": Decimal("1.10"),
    "weight": 0.1,
    "note": "it's 5%",
    "Paid": None,
    "day": date(2026, 11, 21),
    "at": datetime(2026, 11, 21, 9, tzinfo=UTC),
    "raw": None,
    "code": "ab  ",
    "email": "Ann@Acme",
    "ref": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "lasts": "PT1H",
}


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("total > 0", True),
        ("total = 1.1 AND -total * 2 + 1 <= -1.20", True),
        ("weight = 0.1", True),
        ("total IN (1, 2, NULL)", None),
        ("total NOT IN (1, 1.1, NULL)", False),
        ("Paid", None),
        ("paid OR total > 0", True),
        ("NOT paid AND total < 0", False),
        ("paid IS NOT TRUE", True),
        ("paid IS NULL OR FALSE", True),
        ("note LIKE 'it''s _\\%'", True),
        ("lower(note) <> upper(note)", True),
        ("length(trim('  x ')) = 1", True),
        ("day BETWEEN '2026-11-01' AND '2026-11-30'", True),
        ("at >= '2026-11-21T10:00:00+02:00'", True),
        ("coalesce(paid, TRUE)", True),
        ('raw IS NULL AND "total" = `total`', True),
        ("abs(total - 2) = 0.9", True),
        ("NULL", None),
        ("code = 'ab' AND code IN ('x ', 'ab ') AND coalesce(code, 'c') < 'abc'", True),
        ("code LIKE 'ab  ' AND NOT code LIKE 'ab' AND length(code) = 2", True),
        ("upper(code) = 'AB' AND note <> code", True),
        ("email = 'ANN@acme' AND email LIKE '%@ACME' AND email IN ('ann@acme')", True),
        ("trim(email) = 'Ann@Acme' AND upper(email) = 'ANN@ACME'", True),
        ("trim(email) = 'ann@acme'", False),
        ("ref = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11' AND ref LIKE 'a0%'", True),
        ("lasts IS NOT NULL AND lower(lasts) = 'pt1h' AND lasts LIKE 'PT%'", True),
    ],
)
def test_conditions_have_three_answers(condition: str, answer: bool | None) -> None:
    assert answer is fitted(parse(condition), COLUMNS).evaluate(ROW)


def test_not_a_number_equals_itself_and_is_the_greatest() -> None:
    same = fitted(parse("total = total AND total > 1e300 AND NOT total < 5"), COLUMNS)

    assert same.evaluate({"total": float("nan")}) is True
    assert same.evaluate({"total": Decimal("NaN")}) is True


def test_a_product_of_the_longest_numerics_of_postgres_is_exact() -> None:
    longest = Decimal(f"{'9' * 131_072}.{'9' * 16_383}")
    cube = "total * total * total"
    condition = fitted(parse(f"{cube} - {cube} = 0 AND {cube} > total"), COLUMNS)

    assert condition.evaluate({"total": longest}) is True
    assert condition.evaluate({"total": -longest}) is False


@pytest.mark.parametrize(
    "condition",
    ["", "total >", "total > 0 extra", "(total", "total ; DROP", "total NOT 1", "(" * 60, "IN"],
)
def test_what_is_no_condition_is_refused_where_it_is_written(condition: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        expect("named", condition)

    assert caught.value.message.startswith("expectation named: ")
    assert caught.value.hint


@pytest.mark.parametrize(
    "condition",
    [
        "totals > 0",
        '"TOTAL" > 0',
        "total = note",
        "total",
        "note + 1 = 2",
        "raw = raw",
        "day > 'yesterday'",
        "random() > 0",
        "length(note, note) = 1",
        "note LIKE note",
        "NOT total",
        "lasts > '1 hour'",
        "lasts = 'PT60M'",
        "lasts IN ('PT60M')",
        "coalesce(lasts, 'PT1H') = note",
        "email = note",
        "ref = 'unknown'",
    ],
)
def test_what_does_not_fit_the_columns_is_refused_before_any_row(condition: str) -> None:
    with pytest.raises(ConditionError):
        fitted(parse(condition), COLUMNS)


@pytest.mark.parametrize(
    ("type_name", "wanted"),
    [
        ("text", Type.TEXT),
        ("character varying(20)", Type.TEXT),
        ('"char"', Type.TEXT),
        ("shop.mood", Type.TEXT),  # an enum, or a domain
        ("character(4)", Type.PADDED),
        ("bpchar", Type.PADDED),
        ("public.citext", Type.CASELESS),
        ("interval", Type.PRINTED),
        ("interval day to second(3)", Type.PRINTED),
        ("time(3) with time zone", Type.PRINTED),
        ("money", Type.PRINTED),
        ("character varying(20)[]", Type.PRINTED),
        ("tstzrange", Type.PRINTED),
    ],
)
def test_columns_compare_by_their_types_in_postgres(type_name: str, wanted: Type) -> None:
    schema = TableSchema(TABLE.table, (Column("c", ColumnKind.TEXT, type_name),))

    assert {"c": wanted} == types_of(schema)


SHOP = """
from headwater import expect, source, view

shop = source("shop", tables=["public.things"], eventstore=True)
positive = expect("positive", "id > 0", on_fail="drop")
things = view.mirror("things", shop.things, expect=[positive])
view.sql("few", "few.sql", keys=["id"], to=["table"])


@view(keys=["id"], to=["table"])
@expect("first", "id < 3", on_fail="fail")
@expect("second", "id < 2")
def fewer(few):
    return few
"""
FEW = """-- the first ones
-- CONSTRAINT small EXPECT (id < (3)) ON VIOLATION DROP ROW
-- constraint noted expect (note IS NOT NULL)
SELECT id, note FROM things
"""


def test_expectations_are_said_in_python_and_in_sql(tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text(SHOP)
    (tmp_path / "few.sql").write_text(FEW)

    found = load(tmp_path / "views.py")

    derived = {name: tuple(map(str, v.expectations)) for name, v in found.derived.items()}
    assert [str(each) for each in found.views["things"].expectations] == [
        "positive: id > 0 (else drop)"
    ]
    assert derived == {
        "few": ("small: id < (3) (else drop)", "noted: note IS NOT NULL (else warn)"),
        "fewer": ("first: id < 3 (else fail)", "second: id < 2 (else warn)"),
    }


@pytest.mark.parametrize(
    "said",
    [
        "view.mirror('m', shop.things, expect=['id > 0'])",
        "view.mirror('m', shop.things, expect=[positive, positive])",
        "expect('positive', 'id > 0', on_fail='explode')",
        "expect('Positive', 'id > 0')",
        "expect('one', 'id > 0')(things)",
        "view.sql('s', '-- CONSTRAINT a EXPECT id > 0\\nSELECT id FROM things', keys=['id'])",
        "view.sql('s', 'SELECT id FROM few', ['id'], expect=[expect('a', 'id>0', 'quarantine')])",
        "view.events('e', shop.events('order.placed'), expect=[expect('a', 'tenant = 1', 'fail')])",
        "view.mirror('things', shop.things)",
        "view.sql('cycle', 'SELECT id FROM cycle', keys=['id'])",
        "view('early', keys=['id'])(lambda later: later)",
    ],
)
def test_what_cannot_be_declared_is_refused(tmp_path: Path, said: str) -> None:
    (tmp_path / "few.sql").write_text(FEW)
    (tmp_path / "views.py").write_text(SHOP + said)

    with pytest.raises(DeclarationError) as caught:
        load(tmp_path / "views.py")

    assert caught.value.hint or "two views" in caught.value.message or "two " in str(caught.value)


@pytest.mark.parametrize(
    ("table", "hint"), [("thing", "did you mean things?"), ("public.things", "without a schema")]
)
def test_a_query_that_reads_no_view_is_refused_with_what_helps(
    tmp_path: Path, table: str, hint: str
) -> None:
    (tmp_path / "few.sql").write_text(FEW)
    declared = f"view.sql('s', 'SELECT id FROM {table}', ['id'])"  # noqa: S608  # a declaration
    (tmp_path / "views.py").write_text(SHOP + declared)

    with pytest.raises(DeclarationError, match="view s reads no view") as caught:
        load(tmp_path / "views.py")

    assert table.partition(".")[0] in str(caught.value.detail)
    assert hint in str(caught.value.hint)


def test_a_view_that_lacks_a_column_of_its_expectation_is_refused_by_name() -> None:
    shop = source("shop", tables=["public.things"])
    expectation = expect("short", "length(big) < 9", on_fail="drop")
    schemas = {TableName("public", "things"): TABLE}
    plan_views([view.mirror("m", shop.things, expect=[expectation])], schemas)

    with pytest.raises(PlanError) as caught:
        plan_views(
            [
                view.mirror(
                    "m", shop.things, scd=2, except_column_list=["big"], expect=[expectation]
                )
            ],
            schemas,
        )

    assert caught.value.message.startswith("view m, expectation short: ")


def test_a_row_that_halts_its_view_is_named_by_its_place_alone() -> None:
    table = Source(whole_rows=True)
    table.together([[("copy", *KEYS)]], _First())
    sink, halting = MemorySink(), expect("low", "id < 3", on_fail="fail")
    delivery = TaskApplier([_with(halting)], lambda: sink)

    delivery.take(TOPIC, numbered(table.topic))
    with pytest.raises(ViewHaltedError) as caught:
        delivery.finish()

    assert delivery.halted == "things"
    assert list(sink.documents(PLAN)) == []
    assert caught.value.detail == f"expectation low; topic {TOPIC}, partition 0, offset 2"
    assert caught.value.retriable


def test_what_fails_is_counted_by_expectation() -> None:
    table = Source(whole_rows=True)
    table.together([[("copy", *KEYS)]], _First())
    said = expect("low", "id < 3", on_fail="drop"), expect("high", "id > 3")
    delivery = TaskApplier([_with(*said)], MemorySink)

    delivery.take(TOPIC, numbered(table.topic))
    delivery.finish()

    count = delivery.counts["things"]
    assert dict(count.failed) == {"low": 2, "high": 3}
    assert (count.records, count.applied, count.quarantined) == (4, 4, 0)


def test_rows_that_are_marked_count_as_deleted_and_those_nobody_knows_of_stay(
    tmp_path: Path,
) -> None:
    views = tmp_path / "views.py"
    views.write_text(
        "from headwater import source, view\n"
        "shop = source('shop', tables=['public.orders'])\n"
        "view.mirror('orders', shop.orders, apply_as_deletes=\"note = 'gone' OR paid\")\n"
    )
    (marked,) = load(views).views["orders"].expectations
    types = {"note": Type.TEXT, "paid": Type.BOOLEAN}
    inspection = Inspection("orders", [marked], types)
    rows = [("gone", False), ("here", True), ("here", False), (None, None), (None, True)]

    assert [True, True, False, False, True] == [
        inspection.unmet({"note": note, "paid": paid}) is marked for note, paid in rows
    ]
    assert {"apply_as_deletes": 3} == dict(inspection.failed)
    with pytest.raises(DeclarationError, match="apply_as_deletes"):
        deletes("paid) OR (true")


def test_rows_of_a_view_made_from_others_pass_the_same_sieve() -> None:
    rows = pa.table(
        {
            "id": [1, 2, 3],
            "total": pa.array([Decimal("1.0"), None, Decimal("-1.0")], pa.decimal128(12, 1)),
            "_deleted": [False, False, True],
        }
    )
    sieve = ExpectationFilter("v", (expect("positive", "total > 0", on_fail="drop"),))

    assert sieve.marked(rows)["_deleted"].to_pylist() == [False, True, True]
    assert sieve.failed == {"positive": 1}
    (left,) = sieve.passing(rows.to_batches())
    assert left["id"].to_pylist() == [1]
    with pytest.raises(ViewHaltedError):
        ExpectationFilter("v", (expect("positive", "total > 0", on_fail="fail"),)).marked(rows)


class _First:
    """An order without chance."""

    def choice(self, found: list[int]) -> int:
        return found[0]

    def randint(self, low: int, _: int) -> int:
        return low

    def shuffle(self, _: list[int]) -> None:
        pass


def _with(*expectations: Expectation) -> ViewPlan:
    return replace(PLAN, expectations=expectations)
