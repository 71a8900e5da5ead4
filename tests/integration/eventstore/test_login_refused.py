"""A login that the server refuses ends a store's calls and its runners with the server's words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest
from fix_subscription import record
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout

from eventstore.errors import LoginRefusedError, StoreUnavailableError
from eventstore.postgres import connection as store
from eventstore.postgres import login
from eventstore.postgres.sessions import AsyncSessions, Sessions
from eventstore.subscription import Subscription
from eventstore.subscription.runner import SubscriptionRunner

if TYPE_CHECKING:
    from fix_subscription import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SEVERAL = "Multiple connection attempts failed. All failures were:\n"
DOWN = "postgresql://u:secret@127.0.0.1:1/d"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool gives up early; what it then reports is not changed by that."""
    monkeypatch.setattr(store, "CONNECTION_TIMEOUT_S", 0.5)


def missing(dsn: str) -> list[str]:
    return [make_conninfo(dsn, dbname="no_such_db"), make_conninfo(dsn, user="no_such_role")]


@pytest.mark.usefixtures("brief")
def test_a_pool_that_cannot_log_in_says_why_and_is_not_retried(database: str) -> None:
    for dsn in missing(database):
        sessions = Sessions(dsn, 1)

        with pytest.raises(LoginRefusedError) as caught, sessions.acting(None):
            pass

        sessions.close()
        assert not caught.value.retriable
        assert "no_such" in str(caught.value.detail)
        assert caught.value.hint


@pytest.mark.usefixtures("brief")
def test_a_pool_for_asyncio_that_cannot_log_in_says_why(database: str) -> None:
    async def use(dsn: str) -> None:
        sessions = AsyncSessions(dsn, 1)
        try:
            async with sessions.acting(None):
                pass
        finally:
            await sessions.close()

    for dsn in missing(database):
        with pytest.raises(LoginRefusedError, match="does not accept this login"):
            asyncio.run(use(dsn))


@pytest.mark.usefixtures("brief")
def test_a_server_that_is_down_is_worth_a_retry_and_a_full_pool_is_named_as_before(
    database: str,
) -> None:
    down = Sessions(DOWN, 1)
    full = Sessions(database, 1)

    with pytest.raises(StoreUnavailableError) as caught, down.acting(None):
        pass
    with full.plain(), pytest.raises(PoolTimeout), full.plain():
        pass

    down.close()
    full.close()
    assert caught.value.retriable
    assert "refused" in str(caught.value.detail)
    assert "secret" not in f"{caught.value} {caught.value.detail}"


def test_a_runner_whose_database_is_gone_ends_instead_of_retrying(ledger: Ledger) -> None:
    name = str(conninfo_to_dict(ledger.dsn)["dbname"])
    runner = SubscriptionRunner(ledger.dsn, Subscription(name="view", handler=record))
    ledger.connection.close()
    ledger.log.close()
    with psycopg.connect(make_conninfo(ledger.dsn, dbname="postgres"), autocommit=True) as admin:
        old, new = sql.Identifier(name), sql.Identifier(f"{name}_x")
        admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(old, new))
        try:
            with pytest.raises(LoginRefusedError) as caught:
                runner.run()
        finally:
            admin.execute(sql.SQL("ALTER DATABASE {} RENAME TO {}").format(new, old))

    assert name in str(caught.value.detail)


@pytest.mark.parametrize(
    ("host", "text", "refused"),
    [
        ("a", 'connection failed: FATAL:  password authentication failed for user "u"', True),
        ("a", 'FATAL:  database "d" does not exist', True),
        ("a", 'FATAL:  no pg_hba.conf entry for host "1.2.3.4"', True),
        ("a", "FATAL:  the database system is starting up", False),
        ("a", 'FATAL:  too many connections for role "u"', False),
        ("a", "connection timeout expired", False),
        (
            "a",
            SEVERAL + "- host: 'a': Connection refused\n"
            "- host: 'a': FATAL: password authentication failed",
            True,
        ),
        (
            "a,b",
            SEVERAL + "- host: 'a': Connection refused\n"
            "- host: 'b': FATAL: password authentication failed",
            False,
        ),
    ],
)
def test_only_a_refusal_that_no_repetition_changes_ends_the_retries(
    host: str, text: str, *, refused: bool
) -> None:
    found = login.failure(f"host={host} dbname=d", psycopg.OperationalError(text))

    assert refused == isinstance(found, LoginRefusedError)
