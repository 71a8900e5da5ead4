"""What a role or a database sets for its sessions cuts off or alters none of ours."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

from cdc.postgres import session, slot

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

SET = {
    "statement_timeout": "2s",
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "2s",
    "idle_session_timeout": "2s",
    "transaction_timeout": "2s",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-5",
    "bytea_output": "escape",
}


@pytest.fixture
def hurried(database: str) -> Iterator[str]:
    """The database as a role whose sessions are cut off at once."""
    parts = urlsplit(database)
    dsn = parts._replace(netloc=f"hurried:x@{parts.hostname}:{parts.port}").geturl()
    with psycopg.connect(database, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS hurried")
        admin.execute("CREATE ROLE hurried LOGIN REPLICATION PASSWORD 'x'")
        for name, value in SET.items():
            alter = sql.SQL("ALTER ROLE hurried SET {} = {}")
            admin.execute(alter.format(sql.SQL(name), sql.Literal(value)))
        admin.execute("GRANT CREATE ON SCHEMA public TO hurried")
        yield dsn
        admin.execute("DROP OWNED BY hurried")
        admin.execute("DROP ROLE hurried")


def test_a_session_is_not_cut_off_and_reads_what_others_read(hurried: str) -> None:
    with closing(session.connect(hurried)) as connection:
        with connection.transaction():
            connection.execute("CREATE TABLE slow (id int)")
            connection.execute("SELECT pg_sleep(2.2)")
        for name in SET:
            (now,) = connection.execute(f"SHOW {name}".encode()).fetchone() or ("",)
            (usual,) = connection.execute(
                "SELECT boot_val FROM pg_settings WHERE name = %s", (name,)
            ).fetchone() or ("",)
            assert usual == now, name
        slot.make(connection, "of_the_hurried", 20)
        assert connection.execute("SHOW statement_timeout").fetchone() == ("0",)
        assert slot.drop(connection, "of_the_hurried")


def test_what_an_address_says_itself_holds(hurried: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = quote("-c statement_timeout=7s --lock-timeout=8s")
    with closing(session.connect(f"{hurried}?options={said}")) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("7s",)
        assert connection.execute("SHOW lock_timeout").fetchone() == ("8s",)
        assert connection.execute("SHOW transaction_timeout").fetchone() == ("0",)
    monkeypatch.setenv("PGOPTIONS", "-c statement_timeout=9s")
    with closing(session.connect(hurried)) as connection:
        assert connection.execute("SHOW statement_timeout").fetchone() == ("9s",)


def test_the_session_that_reads_the_log_can_begin_with_the_same(hurried: str) -> None:
    with psycopg.connect(hurried) as connection:
        version = connection.info.server_version
    options = quote(session.own_options(version))
    with psycopg.connect(f"{hurried}?options={options}", autocommit=True) as connection:
        connection.execute("SELECT pg_sleep(2.2)")
        assert connection.execute("SHOW transaction_timeout").fetchone() == ("0",)
        assert connection.execute("SHOW default_transaction_read_only").fetchone() == ("off",)
