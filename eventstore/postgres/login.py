"""Classifies a failed connection: a permanent refusal of the login, or a temporary failure."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from eventstore.errors import LoginRefusedError, StoreUnavailableError
from foundation.dsn import misread

CONNECT_TIMEOUT_S: Final = 10

# The client library reports no SQLSTATE for a failed login, so the server's message is matched. If
# the server's language is not English, the failure counts as temporary: runners retry and log the
# message.
_REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry"
    r'|role "[^"]*" (?:does not exist|is not permitted to log in)'
    r'|FATAL: +database "[^"]*" does not exist'
)
_SEVERAL: Final = "Multiple connection attempts failed"
_ATTEMPT: Final = re.compile(r"^- host: ", re.MULTILINE)


def failure(dsn: str, error: psycopg.Error) -> StoreUnavailableError:
    """Returns the store's error for a connection that could not be opened.

    If the DSN names several hosts, the refusal is permanent only if each of them refused the login:
    a host that is down may accept it later. If a single host has several addresses, one refusal
    suffices.

    Args:
        dsn: The database; never shown.
        error: Raised by the driver.
    """
    text = str(error).strip()
    attempts = [text]
    if text.startswith(_SEVERAL) and not _single_host(dsn):
        attempts = _ATTEMPT.split(text)[1:]
    # the client library indents the advice that follows a reason
    reasons = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    detail = reasons[-1][:200] if reasons else type(error).__name__
    if attempts and all(_REFUSED.search(attempt) for attempt in attempts):
        refusal = next(line for line in reversed(text.splitlines()) if _REFUSED.search(line))
        return LoginRefusedError(
            "the event store's database does not accept this login",
            detail=refusal.strip()[:200],
            hint="check user, password and database in the DSN, and the server's pg_hba.conf",
        )
    return StoreUnavailableError(
        "cannot connect to the event store's database",
        detail=detail,
        hint="check host, port, database, user and password in the DSN",
    )


def attempt(dsn: str) -> StoreUnavailableError | None:
    """Connects once; returns the error, None on success.

    A pool reports only that no connection was available in time, not the cause.

    Args:
        dsn: The database.
    """
    try:
        parsed(dsn)
    except LoginRefusedError as error:
        return error
    try:
        psycopg.connect(dsn, connect_timeout=CONNECT_TIMEOUT_S).close()
    except psycopg.Error as error:
        return failure(dsn, error)
    return None


def parsed(dsn: str) -> dict[str, Any]:
    """Returns the parameters of a DSN.

    Raises:
        LoginRefusedError: It cannot be read. The driver's message would show a part of it, which
            may be the password.
    """
    try:
        said = dict(conninfo_to_dict(dsn))
    except (psycopg.ProgrammingError, AttributeError, TypeError):
        raise _unreadable() from None
    if misread(said):
        raise _unreadable()
    return said


def _unreadable() -> LoginRefusedError:
    return LoginRefusedError(
        "the DSN of the event store's database cannot be read",
        detail="not shown, because it may contain a password",
        hint="postgresql://user:password@host:5432/database; in a password, write @ as %40, / as "
        "%2F, % as %25 and a space as %20",
    )


def _single_host(dsn: str) -> bool:
    said = parsed(dsn)
    hosts = str(said.get("host") or said.get("hostaddr") or "")
    return bool(hosts) and "," not in hosts
