"""Views stay bound to tables that change: they follow, keep their columns, or pause and say why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import own_schema
from cdc.schema_change import history, trigger
from cdc.snapshot import reads
from cdc.table import TableName
from projections.definition.columns import ROW_ID_COLUMN
from projections.definition.views import HistoryColumns, MirrorView, SchemaPolicy, Store
from projections.errors import PlanError, ViewPausedError
from projections.planning import view_schemas
from projections.planning.binding import Binding, bind, resume
from projections.planning.row_upcaster import Fitting

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

NAMES = tuple(TableName("public", name) for name in ("t", "visits"))


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, a text, b int); CREATE TABLE visits (page text)"
        )
        own_schema.ensure(connection)
        trigger.ensure(connection)
        history.observe(connection, NAMES)
        yield connection


def mirror(
    name: str, policy: SchemaPolicy | None = None, table: str = "t", without: tuple[str, ...] = ()
) -> MirrorView:
    place, to = TableName("public", table), frozenset({Store.CACHE})
    return MirrorView(name, "shop", place, (), to, policy, left_out=without)


def bound(source: psycopg.Connection[Any], *views: MirrorView, decides: bool = True) -> Binding:
    return bind(source, "shop", views, decides=decides)


def asked(source: psycopg.Connection[Any]) -> int:
    return len(reads.of_source(source, "shop", 1))


def columns(binding: Binding) -> list[str]:
    return [column.name for column in binding.plans[0].schema.columns]


def test_a_view_follows_what_loses_nothing_and_reads_again_what_the_log_does_not_have(
    source: psycopg.Connection[Any],
) -> None:
    view = mirror("v")
    assert columns(bound(source, view)) == ["id", "a", "b"]

    source.execute("ALTER TABLE t ADD c int")
    assert columns(bound(source, view, decides=False)) == ["id", "a", "b"]  # nobody decided yet
    assert columns(bound(source, view)) == ["id", "a", "b", "c"]
    assert asked(source) == 0
    mark = view_schemas.mark(source, "shop")
    source.execute("ALTER TABLE t ADD d int DEFAULT 5; ALTER TABLE t RENAME a TO label")
    assert view_schemas.mark(source, "shop") != mark
    plan = bound(source, view).plans[0]
    again = bound(source, view)

    assert [column.name for column in plan.schema.columns] == ["id", "label", "b", "c", "d"]
    assert (again.plans, asked(source)) == ((plan,), 1)
    assert again.mark == bound(source, view).mark
    waiting = view_schemas.waiting_topics(source, "shop", Store.CACHE, ["v", "other"])
    assert waiting == {"shop.public.t"}
    fits = Fitting(plan.schema, plan.shapes[plan.topic])
    first = plan.shapes[plan.topic].history.versions[0].lsn.value
    row = fits.fit({"id": 1, "a": "x", "b": 2}, first, read=False)
    assert row == {"id": 1, "label": "x", "b": 2, "c": None, "d": 5}
    assert list(view_schemas.outcomes(source).values()) == [{"v": "followed"}] * 3


def test_a_change_that_loses_something_pauses_one_view_until_it_is_resumed(
    source: psycopg.Connection[Any],
) -> None:
    follows, careful, other = (
        mirror("f", SchemaPolicy.EVOLVE),
        mirror("v"),
        mirror("o", table="visits"),
    )
    bound(source, follows, careful, other)
    source.execute("ALTER TABLE t ALTER a TYPE int USING 1")

    found = bound(source, follows, careful, other)
    assert [plan.name for plan in found.plans] == ["f", "o"]
    (paused,) = found.paused
    assert (paused.name, paused.topics) == ("v", ("shop.public.t",))
    assert (paused.fault.code, paused.fault.detail, paused.fault.hint) == (
        ViewPausedError.code,
        "column retyped: a (text to integer)",
        "headwater view resume v",
    )
    assert bound(source, careful).paused == found.paused  # whoever asks later is told the same
    with pytest.raises(ViewPausedError, match="f is not paused"):
        resume(source, "shop", follows)
    before = history.position(source)
    plan = resume(source, "shop", careful)
    assert plan.left_to_read == plan.kept_since >= (1 << 56 | before.value)
    assert bound(source, careful).plans == (plan,)
    assert view_schemas.outcomes(source).popitem()[1] == {"f": "followed", "v": "resumed"}


def test_a_view_that_keeps_its_columns_knows_what_became_of_them(
    source: psycopg.Connection[Any],
) -> None:
    keeps, waits = mirror("k", SchemaPolicy.IGNORE), mirror("w", SchemaPolicy.QUARANTINE)
    bound(source, keeps, waits)
    source.execute(
        "ALTER TABLE t RENAME a TO label; ALTER TABLE t DROP b; ALTER TABLE t ADD c int DEFAULT 1"
    )

    plans = {plan.name: plan for plan in bound(source, keeps, waits).plans}
    kept = plans["k"]
    assert [column.name for column in kept.schema.columns] == ["id", "a", "b"]
    assert (kept.absent, kept.renamed) == ({"b"}, {"a": "label"})
    assert asked(source) == 0
    row, now = {"id": 1, "label": "x", "c": 1}, history.position(source).value
    fits = Fitting(kept.schema, kept.shapes[kept.topic])
    assert fits.fit(row, now, read=False) == {"id": 1, "a": "x", "b": None}
    waiting = Fitting(plans["w"].schema, plans["w"].shapes[kept.topic])
    with pytest.raises(LookupError):
        waiting.fit(row, now, read=False)
    assert waiting.fit({"id": 1, "a": "x", "b": 2}, 1, read=True) == {"id": 1, "a": "x", "b": 2}
    assert plans["w"].behind
    assert not kept.behind
    source.execute("ALTER TABLE t ALTER id TYPE int USING id + 1")  # columns and key are as before
    plans = {plan.name: plan for plan in bound(source, keeps, waits).plans}
    assert [column.name for column in plans["k"].schema.columns] == ["id", "a", "b"]
    assert plans["w"].schema == kept.schema
    assert view_schemas.waiting_topics(source, "shop", Store.CACHE, ["k"]) == {"shop.public.t"}
    assert view_schemas.waiting_topics(source, "shop", Store.CACHE, ["w"]) == frozenset()


def test_rows_that_were_rewritten_for_a_column_that_is_ignored_are_read_again(
    source: psycopg.Connection[Any],
) -> None:
    keeps = mirror("k", SchemaPolicy.IGNORE)
    bound(source, keeps)
    source.execute("ALTER TABLE t ADD g uuid DEFAULT gen_random_uuid()")

    (kept,) = bound(source, keeps).plans

    # records of before are left to a read: others of their values may have been rewritten, too
    fits = Fitting(kept.schema, kept.shapes[kept.topic])
    first = kept.shapes[kept.topic].history.versions[0].lsn.value
    assert fits.fit({"id": 1, "a": "x", "b": 2}, first, read=False) is None
    assert (asked(source), list(kept.schema.by_name)) == (1, ["id", "a", "b"])


def test_a_renamed_table_pauses_its_views_until_they_are_declared_by_its_new_name(
    source: psycopg.Connection[Any],
) -> None:
    bound(source, mirror("v"))
    source.execute("ALTER TABLE t RENAME TO things")

    (paused,) = bound(source, mirror("v")).paused
    assert paused.fault.hint is not None
    assert "new name" in paused.fault.hint
    with pytest.raises(ViewPausedError):
        resume(source, "shop", mirror("v"))
    plan = bound(source, mirror("v", table="things")).plans[0]
    assert list(plan.topics) == ["shop.public.things", "shop.public.t"]
    assert [str(read.table) for read in reads.of_source(source, "shop", 1)] == ["public.things"]
    assert bound(source, mirror("v", table="things")).plans == (plan,)


def test_what_cannot_be_followed_pauses_whatever_is_declared(
    source: psycopg.Connection[Any],
) -> None:
    evolves = SchemaPolicy.EVOLVE
    views = mirror("v", evolves), mirror("o", evolves, "visits")
    assert bound(source, *views).plans[1].keys == (ROW_ID_COLUMN,)

    source.execute("ALTER TABLE visits ADD seconds int; ALTER TABLE t ADD _version int")
    found = bound(source, *views)
    assert [plan.name for plan in found.plans] == ["o"]  # an empty column needs no read
    assert [paused.fault.code for paused in found.paused] == [PlanError.code]
    source.execute("ALTER TABLE visits ADD n int DEFAULT 1; DROP TABLE t")
    details = {paused.name: paused.fault.detail for paused in bound(source, *views).paused}
    assert details["o"] == "column added: n (integer)"
    before = asked(source)
    assert resume(source, "shop", views[1]).keys == (ROW_ID_COLUMN,)
    assert asked(source) == before + 1  # the whole table, which replaces all rows of before
    source.execute("CREATE TABLE t (id int PRIMARY KEY)")
    history.observe(source, NAMES)
    assert [paused.name for paused in bound(source, *views).paused] == ["v"]
    assert resume(source, "shop", views[0]).keys == ("id",)


def test_a_key_that_changes_leaves_older_records_to_the_read(
    source: psycopg.Connection[Any],
) -> None:
    views = mirror("v"), mirror("f", SchemaPolicy.EVOLVE)
    bound(source, *views)
    source.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER b SET NOT NULL, ADD PRIMARY KEY (b)"
    )

    found = bound(source, *views)
    assert [paused.name for paused in found.paused] == ["v"]
    assert found.plans[0].keys == ("b",)
    assert found.plans[0].left_to_read == found.plans[0].kept_since > 1 << 56
    assert asked(source) == 1


def test_a_column_that_is_left_out_changes_as_it_likes(source: psycopg.Connection[Any]) -> None:
    policies = (None, *SchemaPolicy)
    views = [mirror(f"v_{policy}".lower(), policy, without=("b",)) for policy in policies]
    plans = bound(source, *views).plans
    before = history.position(source).value
    since: list[int] = []

    for change in (
        "ALTER TABLE t ALTER b TYPE bigint",  # rewrites, perhaps for other columns, too
        "ALTER TABLE t ALTER b DROP NOT NULL; ALTER TABLE t RENAME b TO secret",
        "ALTER TABLE t ADD b int DEFAULT 5",
        "ALTER TABLE t DROP secret",
        "ALTER TABLE t ALTER b TYPE text; ALTER TABLE t DROP b",
    ):
        source.execute(change.encode())
        found = bound(source, *views)
        assert (len(found.plans), found.paused) == (len(views), ())
        assert {tuple(plan.schema.by_name) for plan in found.plans} == {("id", "a")}
        if "TYPE" not in change:
            assert [plan.kept_since for plan in found.plans] == since
        since = [plan.kept_since for plan in found.plans]
    assert asked(source) == 1  # by all of them; the second is the same as long as that waits
    assert not any(plan.behind for plan in found.plans)
    plan = bound(source, *views).plans[0]
    assert plans[0].unread == {"b"}
    assert plan.unread == frozenset()
    now = history.position(source).value
    fits = Fitting(plan.schema, plan.shapes[plan.topic])
    assert fits.fit({"id": 1, "a": "x"}, now, read=False) == {"id": 1, "a": "x"}
    assert fits.fit({"id": 1, "a": "x", "b": 1}, before, read=False) is None  # the read has it


def test_a_column_is_read_for_a_view_that_wants_it_again(
    source: psycopg.Connection[Any],
) -> None:
    without, whole = mirror("v", without=("b",)), mirror("v")
    bound(source, without)
    before = history.position(source).value

    assert columns(bound(source, whole, decides=False)) == ["id", "a"]  # nobody decided yet
    assert asked(source) == 0
    wanted = bound(source, whole)
    assert columns(wanted) == ["id", "a", "b"]
    assert wanted.plans[0].kept_since >= 1 << 56 | before
    assert bound(source, whole).plans == wanted.plans
    assert asked(source) == 1
    assert view_schemas.waiting_topics(source, "shop", Store.CACHE, ["v"]) == {"shop.public.t"}
    source.execute("UPDATE headwater.snapshots SET state = 'done'")
    less = bound(source, mirror("v", without=("a",)))
    assert columns(less) == ["id", "b"]  # its values are to go, as those of a dropped column
    assert asked(source) == 2
    assert less.plans[0].kept_since == wanted.plans[0].kept_since
    source.execute("ALTER TABLE t RENAME a TO label; ALTER TABLE t ADD c int")
    assert columns(bound(source, mirror("v", without=("a",)))) == ["id", "b", "c"]
    assert columns(bound(source, mirror("v", without=("label",)))) == ["id", "b", "c"]
    assert asked(source) == 2
    source.execute("UPDATE headwater.snapshots SET state = 'done'")
    assert columns(bound(source, whole)) == ["id", "label", "b", "c"]
    assert asked(source) == 3


def test_a_list_that_does_not_fit_is_refused_and_nothing_is_stored(
    source: psycopg.Connection[Any],
) -> None:
    views = mirror("v"), mirror("o", table="visits", without=())
    source.execute("ALTER TABLE visits ADD seconds int")
    with pytest.raises(PlanError, match="no column colour"):
        bound(source, mirror("v", without=("colour",)))
    found = bound(source, *views)

    for wrong, said in (
        (mirror("v", without=("colour",)), "no column colour"),
        (mirror("v", without=("id",)), "part of the key"),
        (mirror("o", table="visits", without=("page",)), "except_column_list cannot change"),
    ):
        with pytest.raises(PlanError, match=said):
            bound(source, wrong)
    assert (bound(source, *views).plans, asked(source)) == (found.plans, 0)


def test_a_column_that_orders_a_history_is_followed_though_it_is_left_out(
    source: psycopg.Connection[Any],
) -> None:
    source.execute("ALTER TABLE t ADD since timestamptz, ADD note text")
    history.observe(source, NAMES)
    to, by = frozenset({Store.TABLE}), HistoryColumns(sequence_by="since")
    out = ("since", "note")
    view = MirrorView("h", "shop", NAMES[0], (), to, history=by, left_out=out)
    plan = bound(source, view).plans[0]
    assert list(plan.schema.by_name) == ["id", "a", "b"]
    assert (plan.unread, list(plan.read.by_name)) == ({"note"}, ["id", "a", "b", "since"])

    source.execute("ALTER TABLE t ALTER note TYPE int USING 1")
    assert bound(source, view).paused == ()
    fits = Fitting(plan.read, bound(source, view).plans[0].shapes[plan.topic])
    row = {"id": 1, "a": "x", "b": 2, "since": "2026-01-01", "note": 1}
    found = fits.fit(row, history.position(source).value, read=False)
    assert found == {name: row[name] for name in plan.read.by_name}
    source.execute("ALTER TABLE t ALTER since TYPE date")
    (paused,) = bound(source, view).paused
    assert paused.fault.detail == "column retyped: since (timestamp with time zone to date)"


def test_a_paused_view_goes_on_with_the_columns_that_its_list_leaves(
    source: psycopg.Connection[Any],
) -> None:
    bound(source, mirror("v"))
    source.execute("ALTER TABLE t ALTER b TYPE text")
    assert [paused.name for paused in bound(source, mirror("v")).paused] == ["v"]

    view = mirror("v", without=("b",))
    assert list(resume(source, "shop", view).schema.by_name) == ["id", "a"]
    source.execute("DROP TABLE t; CREATE TABLE t (x int, y int, b int, c int PRIMARY KEY)")
    history.observe(source, NAMES)
    assert [paused.name for paused in bound(source, view).paused] == ["v"]
    assert list(resume(source, "shop", view).schema.by_name) == ["x", "y", "c"]
