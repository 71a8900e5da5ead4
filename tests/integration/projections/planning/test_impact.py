"""What views would make of a change of their tables is told before, and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from cdc.postgres import own_schema, session
from cdc.schema_change import history, trigger
from cdc.schema_change.trial import try_migration
from cdc.snapshot import reads
from cdc.table import TableName
from projections.definition.views import HistoryColumns, MirrorView, SchemaPolicy, Store
from projections.errors import PlanError, ViewPausedError
from projections.planning import view_schemas
from projections.planning.binding import bind
from projections.planning.impact import SchemaImpact, predict
from projections.planning.schema_policy import SchemaOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ORDERS, ITEMS = TABLES = tuple(TableName("public", name) for name in ("orders", "items"))


def mirror(name: str, policy: SchemaPolicy | None = None, **said: Any) -> MirrorView:
    table = said.pop("table", ORDERS)
    return MirrorView(name, "shop", table, (), frozenset({Store.TABLE}), policy, **said)


VIEWS = (
    mirror("orders"),
    mirror("follows", SchemaPolicy.EVOLVE),
    mirror("keeps", SchemaPolicy.IGNORE),
    mirror("waits", SchemaPolicy.QUARANTINE),
    mirror("narrow", left_out=("note",)),
    mirror("past", history=HistoryColumns(tracked=("total",))),
    mirror("items", table=ITEMS),
)


@pytest.fixture
def source(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, total int, note text);"
            "CREATE TABLE items (id int PRIMARY KEY, sku text)"
        )
        own_schema.ensure(connection)
        trigger.ensure(connection)
        history.observe(connection, TABLES)
        bind(connection, "shop", VIEWS, decides=True)
        yield connection


def kept(source: psycopg.Connection[Any]) -> tuple[Any, ...]:
    """All that a decision would change."""
    shapes = view_schemas.read(source, "shop")
    return shapes, view_schemas.outcomes(source), len(reads.of_source(source, "shop", 1))


def told(found: SchemaImpact) -> dict[str, tuple[SchemaOutcome, bool]]:
    return {each.view: (each.outcome, each.reads) for each in found.views}


def test_what_the_database_sets_for_sessions_changes_nothing(
    source: psycopg.Connection[Any], database: str
) -> None:
    name = sql.Identifier(source.info.dbname)
    source.execute(sql.SQL("ALTER DATABASE {} SET datestyle = 'SQL, DMY'").format(name))
    source.execute("ALTER TABLE orders ADD seen timestamptz")

    with session.connect(database) as connection:
        found = predict(connection, "shop", VIEWS)

    assert (SchemaOutcome.FOLLOWED, False) == told(found)["narrow"]


def test_what_a_migration_would_do_is_what_it_does(
    source: psycopg.Connection[Any], database: str
) -> None:
    migration = (
        "ALTER TABLE orders ALTER note TYPE int USING note::int; ALTER TABLE items ADD n int"
    )
    before = kept(source)
    migrated = try_migration(database, TABLES, migration)
    found = predict(source, "shop", VIEWS, migrated)

    assert before == kept(source)
    assert {
        "orders": (SchemaOutcome.PAUSED, False),
        "follows": (SchemaOutcome.FOLLOWED, True),
        "keeps": (SchemaOutcome.PAUSED, False),
        "waits": (SchemaOutcome.WAITING, False),
        "narrow": (SchemaOutcome.FOLLOWED, True),
        "past": (SchemaOutcome.PAUSED, False),
        "items": (SchemaOutcome.FOLLOWED, False),
    } == told(found)
    (orders,) = (each for each in found.views if each.view == "orders")
    assert ("column retyped: note (text to integer)",) == orders.changes
    assert orders.fault is not None
    assert ViewPausedError.code == orders.fault.code

    source.execute(migration.encode())
    looked = predict(source, "shop", VIEWS)
    assert before[0] == view_schemas.read(source, "shop")
    assert found.views == looked.views
    bound = bind(source, "shop", VIEWS, decides=True)
    assert {plan.name for plan in bound.plans} == {plan.name for plan in found.plans}
    outcomes = {name: said for each in kept(source)[1].values() for name, said in each.items()}
    assert outcomes == {name: str(outcome) for name, (outcome, _) in told(found).items()}
    columns = {plan.name: plan.schema.columns for plan in found.plans}
    assert columns == {plan.name: plan.schema.columns for plan in bound.plans}


def test_a_view_that_stands_still_is_told_until_it_goes_on(
    source: psycopg.Connection[Any],
) -> None:
    assert ((), VIEWS) == (predict(source, "shop", VIEWS).views, VIEWS)
    source.execute("ALTER TABLE orders RENAME TO purchases")
    bind(source, "shop", VIEWS[:1], decides=True)
    (one,) = predict(source, "shop", VIEWS[:1]).views
    assert ("orders", SchemaOutcome.PAUSED, ()) == (one.view, one.outcome, one.changes)
    assert one.fault is not None
    assert "declare the table by its new name" in (one.fault.hint or "")


def test_what_the_source_does_not_note_by_itself_is_seen(
    source: psycopg.Connection[Any],
) -> None:
    source.execute("ALTER EVENT TRIGGER headwater_ddl DISABLE")
    source.execute("ALTER TABLE items ADD n int")
    notes = source.execute("SELECT max(id) FROM headwater.schema_changes").fetchone()
    assert {"items": (SchemaOutcome.FOLLOWED, True)} == told(predict(source, "shop", VIEWS))
    assert notes == source.execute("SELECT max(id) FROM headwater.schema_changes").fetchone()


def test_a_new_view_that_would_not_fit_is_told_beside_all_others(
    source: psycopg.Connection[Any], database: str
) -> None:
    unfit = mirror("unfit", history=HistoryColumns(tracked=("status",)))
    with pytest.raises(PlanError):
        bind(source, "shop", [unfit])
    migrated = try_migration(database, TABLES, "DROP TABLE items")
    found = predict(source, "shop", (unfit, *VIEWS), migrated)
    assert {"unfit": (SchemaOutcome.PAUSED, False), "items": (SchemaOutcome.PAUSED, False)} == told(
        found
    )
    assert {plan.name for plan in found.plans} == {view.name for view in VIEWS} - {"items"}
    migrated = try_migration(database, TABLES, "ALTER TABLE orders ADD status text")
    assert "unfit" not in told(predict(source, "shop", (unfit, *VIEWS), migrated))
