"""A login that the server refuses ends a store's calls and its runners with the server's words."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import PoolTimeout
from structlog.testing import capture_logs

from eventstore.errors import LoginRefusedError, StoreUnavailableError
from eventstore.postgres import connection as store
from eventstore.postgres import login
from eventstore.postgres.sessions import AsyncSessions, Sessions
from eventstore.subscription import AsyncSubscription, Subscription, serving
from eventstore.subscription.async_runner import AsyncSubscriptionRunner
from eventstore.subscription.runner import SubscriptionRunner
from tests.fix_subscription import record
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.model.event import StoredEvent
    from eventstore.subscription import Delivery
    from tests.fix_subscription import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SEVERAL = "Multiple connection attempts failed. All failures were:\n"
DOWN = "postgresql://u:secret@127.0.0.1:1/d"


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool gives up early; what it then reports is not changed by that."""
    monkeypatch.setattr(store, "CONNECTION_TIMEOUT_S", 0.5)


class Rotating:
    """A role of its own whose password is changed while it is logged in.

    Attributes:
        dsn: With the password "old".
    """

    def __init__(self, admin: psycopg.Connection[Any], dsn: str) -> None:
        self._admin = admin
        self._role = f"rotating_{admin.info.dbname}"
        self.dsn = make_conninfo(dsn, user=self._role, password="old")
        admin.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN").format(self._name))
        self.change_password("old")

    def change_password(self, password: str) -> None:
        statement = sql.SQL("ALTER ROLE {} PASSWORD {}")
        self._admin.execute(statement.format(self._name, sql.Literal(password)))

    def end_sessions(self) -> None:
        self._admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s",
            (self._role,),
        )

    def drop(self) -> None:
        self.end_sessions()
        self._admin.execute(sql.SQL("DROP OWNED BY {}").format(self._name))
        self._admin.execute(sql.SQL("DROP ROLE {}").format(self._name))

    @property
    def _name(self) -> sql.Identifier:
        return sql.Identifier(self._role)


@pytest.fixture
def rotating(ledger: Ledger) -> Iterator[Rotating]:
    with psycopg.connect(ledger.dsn, autocommit=True) as admin:
        made = Rotating(admin, ledger.dsn)
        try:
            yield made
        finally:
            made.drop()


@pytest.fixture
def refusals() -> Iterator[Callable[[], int]]:
    """Counts the refused logins that runners have retried."""
    with capture_logs() as logged:
        yield lambda: [entry.get("error_code") for entry in logged].count(LoginRefusedError.code)


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


def test_a_runner_that_starts_with_a_wrong_password_ends_at_once(rotating: Rotating) -> None:
    runner = SubscriptionRunner(rotating.dsn, Subscription(name="view", handler=record))
    rotating.change_password("new")

    with pytest.raises(LoginRefusedError, match="does not accept this login"):
        runner.run()

    assert isinstance(runner.failed, LoginRefusedError)


def test_a_runner_whose_login_is_refused_for_a_moment_goes_on(
    rotating: Rotating, ledger: Ledger, refusals: Callable[[], int]
) -> None:
    with SubscriptionRunner(rotating.dsn, Subscription(name="view", handler=record)) as runner:
        ledger.reaches(ledger.append("order-1"))
        rotating.change_password("new")
        rotating.end_sessions()
        refused = wait_until(refusals, "a refused login", accept=lambda n: n > 0)
        failed = runner.failed
        rotating.change_password("old")
        last = ledger.append("order-1")

        ledger.reaches(last)

    assert failed is None
    assert refused
    assert ledger.logged() == ledger.handled()


def test_a_runner_whose_password_was_changed_ends_after_a_while(
    rotating: Rotating,
    ledger: Ledger,
    refusals: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "LOGIN_REFUSED_MAX_S", 1.5)
    runner = SubscriptionRunner(rotating.dsn, Subscription(name="view", handler=record))
    runner.start()
    ledger.reaches(ledger.append("order-1"))
    rotating.change_password("new")
    rotating.end_sessions()
    began = time.monotonic()

    with pytest.raises(LoginRefusedError, match="does not accept this login"):
        runner.join(30)

    assert time.monotonic() - began >= 1.5
    assert refusals() > 1


def test_a_runner_for_asyncio_whose_password_was_changed_ends_after_a_while(
    rotating: Rotating, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOGIN_REFUSED_MAX_S", 1.0)
    ended: list[BaseException | None] = []

    async def handle(event: StoredEvent, delivery: Delivery) -> None:
        del event, delivery

    async def run() -> None:
        subscription = AsyncSubscription(name="view", handler=handle)
        runner = AsyncSubscriptionRunner(rotating.dsn, subscription, on_stop=ended.append)
        running = asyncio.create_task(runner.run())
        await asyncio.to_thread(wait_until, lambda: runner.ready, "a connected runner")
        await asyncio.to_thread(rotating.change_password, "new")
        await asyncio.to_thread(rotating.end_sessions)
        await running

    with pytest.raises(LoginRefusedError):
        asyncio.run(run())

    assert [LoginRefusedError] == [type(error) for error in ended]


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
