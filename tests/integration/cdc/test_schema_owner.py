"""No role becomes a superuser by what an administrator runs for Headwater, or by what it made."""

# ruff: noqa: ISC004  # it attacks a database of its own with statements in several lines

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from cdc.capture import CaptureSpec
from cdc.postgres import own_schema, own_schema_owner, session
from cdc.postgres.check import CheckState
from cdc.postgres.errors import SchemaOwnerError
from cdc.schema_change import history, trigger, trigger_check
from cdc.table import TableName
from cdc.upkeep import role

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

ORDERS = TableName("public", "orders")

RISE = "BEGIN ALTER ROLE mallory SUPERUSER; EXCEPTION WHEN OTHERS THEN NULL; END;"
TRIGGER = (
    "CREATE FUNCTION public.rise() RETURNS trigger LANGUAGE plpgsql AS"
    f" $$ BEGIN {RISE} RETURN NEW; END $$",
)
PLANTED = {
    "before insert": (
        *TRIGGER,
        "CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION public.rise()",
    ),
    "at the commit": (
        *TRIGGER,
        "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION public.rise()",
    ),
    "default": (
        "CREATE FUNCTION public.d() RETURNS timestamptz LANGUAGE plpgsql AS"
        f" $$ BEGIN {RISE} RETURN now(); END $$",
        "ALTER TABLE {table} ALTER {column} SET DEFAULT public.d()",
    ),
    "condition": (
        "CREATE FUNCTION public.c(timestamptz) RETURNS boolean LANGUAGE plpgsql AS"
        f" $$ BEGIN {RISE} RETURN true; END $$",
        "ALTER TABLE {table} ADD CHECK (public.c({column}))",
    ),
    "index": (
        "CREATE FUNCTION public.c(timestamptz) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS"
        f" $$ BEGIN {RISE} RETURN true; END $$",
        "CREATE INDEX ON {table} (public.c({column}))",
    ),
    "rule": (
        *TRIGGER,
        "CREATE TABLE public.other (n int)",
        "CREATE TRIGGER t BEFORE INSERT ON public.other"
        " FOR EACH ROW EXECUTE FUNCTION public.rise()",
        "CREATE RULE r AS ON INSERT TO {table} DO ALSO INSERT INTO public.other VALUES (1)",
    ),
}
"""What an owner of a table can have whoever inserts into it run."""
PLACES = {"headwater.schema_changes": "noted_at", "headwater.heartbeat": "beat_at"}


@pytest.fixture
def mallory(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A role that may log in and make objects in its database, as one of a `dsn` may."""
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS mallory")
        admin.execute("CREATE ROLE mallory LOGIN PASSWORD 'x'")
        name = sql.Identifier(str(admin.info.dbname))
        admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO mallory").format(name))
        admin.execute("GRANT CREATE, USAGE ON SCHEMA public TO mallory")
    parts = urlsplit(database)
    dsn = parts._replace(netloc=f"mallory:x@{parts.hostname}:{parts.port}").geturl()
    with closing(session.connect(dsn)) as connection:
        own_schema.ensure(connection)
        connection.execute("CREATE TABLE public.orders (id int PRIMARY KEY)")
        history.observe(connection, [ORDERS])
        yield connection
    with psycopg.connect(database, autocommit=True) as admin:
        for name in ("headwater_ddl", "headwater_drop", "headwater_rewrite"):
            admin.execute(f"DROP EVENT TRIGGER IF EXISTS {name}".encode())
        admin.execute("REASSIGN OWNED BY mallory TO CURRENT_USER; DROP OWNED BY mallory")
        admin.execute("DROP ROLE mallory")


def is_superuser(admin: psycopg.Connection[Any]) -> bool:
    return admin.execute("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'").fetchone() == (
        True,
    )


def printed() -> list[str]:
    spec = CaptureSpec("shop", "", (ORDERS,), "", "")
    return [
        each.sql
        for each in role.statements(spec, "d", "mallory")
        if "CREATE ROLE" not in each.sql and "PUBLICATION" not in each.sql
    ][:4]


def run(admin: psycopg.Connection[Any], statements: list[str]) -> None:
    for statement in statements:
        admin.execute(statement.encode())


def plant(mallory: psycopg.Connection[Any], planted: str, table: str) -> None:
    for statement in PLANTED[planted]:
        mallory.execute(statement.replace("{table}", table).replace("{column}", PLACES[table]))


@pytest.mark.parametrize("table", PLACES)
@pytest.mark.parametrize("planted", PLANTED)
def test_an_owner_of_the_schema_gains_nothing_by_what_it_plants_there(
    database: str, mallory: psycopg.Connection[Any], planted: str, table: str
) -> None:
    plant(mallory, planted, table)

    with psycopg.connect(database, autocommit=True) as admin:
        with pytest.raises(psycopg.errors.RaiseException, match="not as Headwater made it"):
            run(admin, printed())
        with pytest.raises(SchemaOwnerError):
            trigger.ensure(admin)
        admin.execute("ALTER TABLE public.orders ADD COLUMN note text")

        assert not is_superuser(admin)


@pytest.mark.parametrize("planted", PLANTED)
def test_triggers_write_nothing_to_a_table_that_another_role_owns(
    database: str, mallory: psycopg.Connection[Any], planted: str
) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        trigger.ensure(admin)
        admin.execute("ALTER SCHEMA headwater OWNER TO mallory")
        admin.execute("ALTER TABLE headwater.schema_changes OWNER TO mallory")
        plant(mallory, planted, "headwater.schema_changes")

        admin.execute("ALTER TABLE public.orders ADD COLUMN note text")

        assert not is_superuser(admin)
        assert not trigger.active(admin)
    (check,) = trigger_check.checks(mallory, [ORDERS])
    assert CheckState.WARN is check.state
    assert "superuser" in check.message


def test_a_function_that_was_there_before_is_not_what_the_triggers_run(
    database: str, mallory: psycopg.Connection[Any]
) -> None:
    mallory.execute(
        "CREATE FUNCTION headwater.note_schema_change() RETURNS event_trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN {RISE} END $$".encode()
    )

    with psycopg.connect(database, autocommit=True) as admin:
        for statement in printed():
            admin.execute(statement.encode())
        admin.execute("ALTER TABLE public.orders ADD COLUMN note text")

        assert not is_superuser(admin)
        assert trigger.active(admin)


def test_the_former_owner_goes_on_with_its_rows_and_cannot_alter_the_schema(
    database: str, mallory: psycopg.Connection[Any]
) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        for statement in (*printed(), *printed()):  # it may be run again
            admin.execute(statement.encode())
    assert own_schema_owner.trusted(mallory)

    mallory.execute("ALTER TABLE public.orders ADD COLUMN note text")
    (last,) = mallory.execute(
        "SELECT command FROM headwater.schema_changes ORDER BY id DESC LIMIT 1"
    ).fetchone() or ("",)
    assert "ALTER TABLE" == last
    mallory.execute(own_schema.BEAT.encode())
    assert [] == own_schema.ensure(mallory)
    assert [CheckState.OK] == [check.state for check in trigger_check.checks(mallory, [ORDERS])]
    for refused in (*PLANTED["before insert"][1:], "DROP TABLE {table}"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mallory.execute(refused.replace("{table}", "headwater.schema_changes").encode())
