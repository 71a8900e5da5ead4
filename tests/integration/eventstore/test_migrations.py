"""The schema goes up, down and up again, from wherever and by whomever it is asked to."""

from __future__ import annotations

import contextlib
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from eventstore.errors import AccessRefusedError, SchemaMissingError, StoreUnavailableError
from eventstore.postgres import schema
from eventstore.subscription.control import Subscriptions
from tests.fix_services import fresh_database
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration
REVISIONS = [
    "0001_event_store",
    "0002_failures",
    "0003_locks",
    "0004_tables",
    "0005_mark",
    "0006_reactors",
]

OBJECTS = """
SELECT n.nspname, 'relation', c.relname || ' ' || c.relkind::text FROM pg_class c
  JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname LIKE 'eventstore%'
UNION ALL
SELECT n.nspname, 'function', p.oid::regprocedure::text FROM pg_proc p
  JOIN pg_namespace n ON n.oid = pronamespace WHERE nspname LIKE 'eventstore%'
UNION ALL
SELECT n.nspname, 'constraint', conname || ' ' || pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_namespace n ON n.oid = connamespace WHERE nspname LIKE 'eventstore%'
UNION ALL
SELECT schemaname, 'policy', tablename || ' ' || policyname FROM pg_policies
UNION ALL
SELECT n.nspname, 'trigger', c.relname || ' ' || tgname FROM pg_trigger t
  JOIN pg_class c ON c.oid = tgrelid JOIN pg_namespace n ON n.oid = relnamespace
 WHERE nspname LIKE 'eventstore%'
ORDER BY 1, 2, 3
"""
ASKED = "SELECT FROM pg_locks WHERE relation = 'eventstore.parked_events'::regclass AND NOT granted"
WAITING = "SELECT count(*) FROM pg_locks WHERE classid = 1749230 AND NOT granted"


def rows(dsn: str, query: str) -> list[tuple]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def stranger(database: str) -> Iterator[str]:
    """How a role comes in that owns nothing; its password is a trap for templates."""
    place = urlsplit(database)
    role, password = sql.Identifier(f"r_{place.path[3:]}"), "p%(a)s@:/ '%%d"
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password))
    login = f"r_{place.path[3:]}:{quote(password, safe='')}"
    yield place._replace(netloc=f"{login}@{place.hostname}:{place.port}").geturl()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(role))
        admin.execute(sql.SQL("DROP OWNED BY {}").format(role))
        admin.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.fixture
def owner(database: str, stranger: str) -> tuple[str, str]:
    """How a role comes in that owns the database and is no superuser, and its name."""
    name = urlsplit(stranger).username or ""
    words = sql.Identifier(urlsplit(database).path[1:]), sql.Identifier(name)
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(*words))
    return stranger, name


def test_up_down_and_up_again_comes_to_the_same(database):
    done = [schema.upgrade(database)]
    first = rows(database, OBJECTS)
    done.append(schema.downgrade(database))
    between = rows(database, OBJECTS), schema.current(database)
    done.append(schema.upgrade(database))

    assert [REVISIONS, REVISIONS[::-1], REVISIONS] == done
    assert ([], None) == between
    assert first == rows(database, OBJECTS)
    assert len(first) > 50


def test_an_upgrade_of_what_is_up_to_date_does_nothing(database):
    assert REVISIONS == schema.upgrade(database)
    assert [] == schema.upgrade(database)
    assert schema.LATEST == schema.current(database)


def test_two_upgrades_at_the_same_time_take_turns(database):
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        done = sorted(pool.map(schema.upgrade, [database] * 3, timeout=120))

    assert [[], [], REVISIONS] == done


def test_two_threads_of_one_process_may_upgrade_two_databases(database, postgres_dsn):
    with fresh_database(postgres_dsn) as other, ThreadPoolExecutor(4) as pool:
        done = list(pool.map(schema.upgrade, [database, other, database, other], timeout=120))
        found = [schema.current(database), schema.current(other)]

    assert [[], [], REVISIONS, REVISIONS] == sorted(done)
    assert [schema.LATEST] * 2 == found


def test_an_upgrade_waits_for_the_one_that_runs_and_sees_what_it_did(database):
    """Also where transactions, by default, see what was there when they began to wait."""
    name = sql.Identifier(urlsplit(database).path[1:])
    serializable = sql.SQL("ALTER DATABASE {} SET default_transaction_isolation = 'serializable'")
    script = schema.upgrade_script(database).replace("BEGIN;", "").replace("COMMIT;", "")
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute(serializable.format(name))
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database) as first:
        first.execute(script)
        second = pool.submit(schema.upgrade, database)
        await_waiting(database)
        waited = not second.done()
        first.commit()

        assert (True, []) == (waited, second.result(timeout=60))
    assert schema.LATEST == schema.current(database)


def await_waiting(dsn: str) -> None:
    wait_until(lambda: rows(dsn, WAITING), "one that waits", accept=lambda found: found == [(1,)])


def test_an_upgrade_that_fails_leaves_nothing(database):
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA eventstore CREATE TABLE mine (id int)")

    with pytest.raises(StoreUnavailableError):
        schema.upgrade(database)
    assert schema.current(database) is None
    assert [("mine",)] == rows(
        database, "SELECT relname FROM pg_class WHERE relnamespace = 'eventstore'::regnamespace"
    )


def test_other_tables_are_left_alone_on_the_way_up_and_down(database):
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE public.alembic_version (version_num text)")
        connection.execute("INSERT INTO public.alembic_version VALUES ('theirs')")
        connection.execute("CREATE SCHEMA headwater CREATE TABLE view_positions (view text)")
    schema.upgrade(database)
    schema.downgrade(database)

    assert [("theirs",)] == rows(database, "SELECT * FROM public.alembic_version")
    assert [] == rows(database, "SELECT * FROM headwater.view_positions")


def test_an_owner_who_is_no_superuser_migrates_with_any_password(owner):
    dsn, role = owner
    up = schema.upgrade(dsn)
    owners = rows(dsn, "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'eventstore'")
    down = schema.downgrade(dsn)

    assert (REVISIONS, [(role,)], REVISIONS[::-1]) == (up, owners, down)


def test_a_dsn_may_be_written_as_libpq_s_keys_and_values(owner):
    keys = make_conninfo(**conninfo_to_dict(owner[0]))

    assert "://" not in keys
    assert REVISIONS == schema.upgrade(keys)
    assert schema.LATEST == schema.current(keys)


def test_a_role_that_may_not_create_a_schema_is_told_so(database, stranger):
    with pytest.raises(AccessRefusedError, match="may not change the schema") as caught:
        schema.upgrade(stranger)
    assert "GRANT CREATE ON DATABASE" in (caught.value.hint or "")
    assert schema.current(database) is None


def test_any_role_may_look_at_the_version(store_dsn, stranger):
    login = urlsplit(stranger)._replace(path=urlsplit(store_dsn).path).geturl()

    assert schema.LATEST == schema.current(login)
    schema.check(login)


def test_a_database_without_the_schema_is_told_the_repair(database):
    with pytest.raises(SchemaMissingError) as caught:
        schema.check(database)
    assert "headwater db upgrade" == caught.value.hint


def test_a_database_of_a_later_version_is_left_alone(store_dsn):
    with psycopg.connect(store_dsn) as connection:
        connection.execute(
            "INSERT INTO headwater_migrations.migrations VALUES ('eventstore', '9999_x', '00')"
        )
    before = rows(store_dsn, OBJECTS)

    for look in (schema.check, schema.upgrade, schema.upgrade_script, schema.downgrade):
        with pytest.raises(SchemaMissingError, match="unknown to this program") as caught:
            look(store_dsn)
        assert "pip install --upgrade headwater" == caught.value.hint
    assert before == rows(store_dsn, OBJECTS)


def test_a_server_that_does_not_answer_is_no_missing_schema():
    dsn = "postgresql://u:canary@127.0.0.1:1/x"

    for look in (schema.check, schema.upgrade, schema.downgrade):
        with pytest.raises(StoreUnavailableError) as caught:
            look(dsn)
        assert not isinstance(caught.value, SchemaMissingError)
        assert "canary" not in f"{caught.value!r} {caught.value.detail} {caught.value.hint}"


def test_the_printed_script_does_what_an_upgrade_does(database, store_dsn):
    script = schema.upgrade_script(database)
    untouched = schema.current(database), rows(database, OBJECTS)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(script)

    assert (None, []) == untouched
    assert rows(store_dsn, OBJECTS) == rows(database, OBJECTS)
    assert "" == schema.upgrade_script(database)
    assert [] == schema.upgrade(database)


def test_looking_changes_nothing(database):
    with contextlib.suppress(SchemaMissingError):
        schema.check(database)
    schema.current(database)
    schema.upgrade_script(database)

    assert [] == rows(database, "SELECT FROM pg_namespace WHERE nspname ~ 'eventstore|headwater'")


def test_a_released_revision_that_was_edited_since_is_not_run_upon(store_dsn):
    with psycopg.connect(store_dsn) as connection:
        connection.execute(
            "UPDATE headwater_migrations.migrations SET digest = '00' WHERE name = '0002_failures'"
        )

    with pytest.raises(SchemaMissingError) as caught:
        schema.upgrade(store_dsn)
    assert "it has 0002_failures" in (caught.value.detail or "")


def test_an_upgrade_gives_a_table_back_that_another_session_keeps_for_long(database):
    """A writer that comes meanwhile is not kept waiting by the upgrade's own wait."""
    schema.upgrade(database, through=REVISIONS[0])
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database) as reader:
        reader.execute("SELECT FROM eventstore.parked_events")
        upgrade = pool.submit(schema.upgrade, database)
        wait_until(lambda: rows(database, ASKED), "a wait for it", accept=bool)
        with psycopg.connect(database) as writer:
            writer.execute("SET lock_timeout = '10s'")
            writer.execute("LOCK TABLE eventstore.parked_events IN ROW EXCLUSIVE MODE")
        waited = not upgrade.done()
        reader.commit()

        assert (True, REVISIONS[1:]) == (waited, upgrade.result(timeout=60))


def test_the_latest_revision_is_the_one_the_code_names():
    assert REVISIONS[-1] == schema.LATEST


def test_what_failed_before_an_upgrade_is_there_after_it_and_can_be_retried(database):
    schema.upgrade(database, through=REVISIONS[0])
    with psycopg.connect(database) as connection:
        connection.execute(
            "SELECT eventstore.declare_subscription('default', 'mail', 1, 0, false);"
            "INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position,"
            " state, live, attempts, error_type) VALUES"
            " ('default', 'mail', 'order-1', 1, 'parked', true, 5, 'builtins.KeyError');"
            "INSERT INTO eventstore.processes (tenant, manager, process_id)"
            " VALUES ('default', 'mail', '7');"
            "INSERT INTO eventstore.timers (tenant, manager, process_id, name, due_at, fires_at,"
            " attempts, error_type) VALUES ('default', 'mail', '7', 'late', now(), 'infinity', 5,"
            " 'builtins.ValueError')"
        )
    done = schema.upgrade(database)
    with Subscriptions(database) as subscriptions:
        streams, timers = subscriptions.parked("mail"), subscriptions.parked_timers("mail")
        retried = subscriptions.retry_all("mail")

    assert REVISIONS[1:] == done
    assert [("order-1", 5, None)] == [
        (one.stream, one.attempts, one.error_location) for one in streams
    ]
    assert [("7", "late", "parked", None)] == [
        (one.process_id, one.timer, one.state, one.error_location) for one in timers
    ]
    assert 2 == retried


def test_the_printed_script_of_an_older_database_has_only_what_is_new(database):
    schema.upgrade(database, through=REVISIONS[0])
    script = schema.upgrade_script(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(script)

    assert "CREATE TABLE eventstore.events" not in script
    assert [] == schema.upgrade(database)
