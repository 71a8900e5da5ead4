"""Sessions with the source database; each cause of a failed connection has its own error."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from cdc.postgres.errors import (
    CredentialsError,
    DatabaseMissingError,
    HostUnknownError,
    PostgresError,
    PostgresRefusedError,
    PostgresUnavailableError,
)
from foundation.dsn import misread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg import Connection

CONNECT_TIMEOUT_S: Final = 10
_LOG_NAME: Final = "headwater"

# The client library reports the cause only as text. Where possible, the server's part is matched by
# its form (`FATAL: database "x" ...`), because a server may use another language.
_REASONS: Final[tuple[tuple[re.Pattern[str], type[PostgresError], str, str], ...]] = (
    (
        re.compile(r'service file|definition of service "'),
        HostUnknownError,
        "the service that the DSN names is not defined",
        "check service= in the DSN, and pg_service.conf (PGSERVICEFILE)",
    ),
    (
        re.compile(r"resolve host|translate host name|Name or service not known|No route to host"),
        HostUnknownError,
        "no such host, or no way to it",
        "check the host in the DSN",
    ),
    (
        re.compile(r"Connection refused|invalid response to SSL|No such file or directory"),
        PostgresRefusedError,
        "no Postgres listens there",
        "check host and port in the DSN, and that the server runs",
    ),
    (
        re.compile(r'FATAL: +database "[^"]*" does not exist|FATAL: +3D000'),
        DatabaseMissingError,
        "the server has no such database",
        "check the database in the DSN; psql -l lists what there is",
    ),
    (
        re.compile(r'authentication failed|no password supplied|role "|no pg_hba.conf entry|SCRAM'),
        CredentialsError,
        "the server does not let this user in",
        "check user and password in the DSN, and the server's pg_hba.conf",
    ),
)


LIVENESS: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Options of every session that detect a vanished server within half a minute; by default, Linux
waits two hours for a dead machine."""

# The server must detect a vanished client within the same time: until then it keeps the locks and
# the snapshot of the session.
_NOTICED: Final = (
    "SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3"
)

_SETTINGS: Final = (
    ("statement_timeout", "0", 0),
    ("lock_timeout", "0", 0),
    ("idle_in_transaction_session_timeout", "0", 0),
    ("idle_session_timeout", "0", 0),
    ("transaction_timeout", "0", 170_000),
    ("default_transaction_read_only", "off", 0),
    ("default_transaction_isolation", "'read committed'", 0),
    ("default_transaction_deferrable", "off", 0),
    ("standard_conforming_strings", "on", 0),
    ("quote_all_identifiers", "off", 0),
    ("DateStyle", "'ISO, MDY'", 0),
    ("IntervalStyle", "postgres", 0),
    ("extra_float_digits", "1", 0),
    ("bytea_output", "hex", 0),
)
"""Settings that a role or a database may have, and that would end our sessions or change what they
read: name, our value, and first server version with it. Our own time limits are set where they
apply."""

_LIMITS: Final = frozenset(
    {"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"}
    | {"idle_session_timeout", "transaction_timeout", "default_transaction_read_only"}
)

_OPTION: Final = re.compile(r"-c\s*([A-Za-z_.]+)=((?:\\.|\S)*)")

UNFILTERED: Final = "-c row_security=off"
"""Option of a session that fails, instead of omitting rows, if a row security policy applies."""


def _parsed(dsn: str) -> dict[str, Any]:
    """Returns the parameters of a DSN; an error shows none of it: it may be the password."""
    place: dict[str, Any] | None = None
    with suppress(psycopg.ProgrammingError):
        place = dict(conninfo_to_dict(dsn))
    if place is None or misread(place):
        raise PostgresRefusedError(
            "the DSN cannot be read",
            hint="postgresql://user:password@host:5432/database; in a password, write @ as %40, "
            "/ as %2F, % as %25 and a space as %20",
        )
    return place


def connect(
    dsn: str, *, autocommit: bool = True, options: str = "", timeout_s: int = CONNECT_TIMEOUT_S
) -> Connection[Any]:
    """Opens a session to the source database.

    Args:
        dsn: `postgresql://…`, or libpq's `key=value` form; never logged. Its time-outs and
            keepalives take precedence.
        autocommit: False for a session with explicit transactions.
        options: Options of the session, in the server's form (`-c name=value`). They are set once
            it is open, so that those of DSN, service and environment apply as well.
        timeout_s: Longest wait for the server to accept the session, seconds.

    Raises:
        PostgresError: The connection failed; the class depends on the cause.
    """
    place = _parsed(dsn)
    conninfo = make_conninfo(
        dsn,
        **{
            "connect_timeout": timeout_s,
            **LIVENESS,
            **_liveness_settings(place),
            **_primary_of(place),
        },
        application_name=_LOG_NAME,
        client_encoding="UTF8",  # without one, texts would arrive as bytes
    )
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
        try:
            settings = own_settings(connection.info.server_version, options=connection.info.options)
            connection.execute(f"{_NOTICED}; {settings}".encode())
            for name, value in _OPTION.findall(options):
                wanted = (name, re.sub(r"\\(.)", r"\1", value))
                connection.execute("SELECT set_config(%s, %s, false)", wanted)
            connection.autocommit = autocommit
        except BaseException:
            connection.close()
            raise
    except psycopg.OperationalError as error:
        raise _named(error, _reached(error) or address(dsn)) from None
    return connection


def own_settings(server_version: int, options: str = "") -> str:
    """Returns statements that override the settings of a role or a database.

    Args:
        server_version: The server's version, as libpq reports it.
        options: Options of the address, which take precedence.
    """
    held = options.lower().replace("-", "_")
    return "; ".join(
        f"SET {name} = {value}"
        for name, value, since in _SETTINGS
        if server_version >= since and f"{name.lower()}=" not in held
    )


def own_options(server_version: int) -> str:
    """Returns the same settings as options of a new session, such as the connector's.

    Settings for printing values are omitted: the connector's driver and class set them.
    """
    return " ".join(
        f"-c {name}={value}"
        for name, value, since in _SETTINGS
        if server_version >= since and name in _LIMITS
    )


def address(dsn: str) -> str:
    """Returns `host:port/database` of a DSN, the part that may be shown."""
    place = conninfo_to_dict(dsn)
    if place.get("service") and not place.get("host"):
        return f"service {place['service']}"
    host = place.get("host") or place.get("hostaddr") or "localhost"
    return f"{host}:{place.get('port') or 5432}/{place.get('dbname') or place.get('user') or ''}"


def database_of(dsn: str) -> str:
    """Returns the name of a DSN's database; connects only if the DSN does not contain it.

    Raises:
        PostgresError: The server cannot be reached.
    """
    with suppress(psycopg.ProgrammingError):  # `connect` raises the specific error
        if named := conninfo_to_dict(dsn).get("dbname"):
            return str(named)
    with connect(dsn) as connection:
        return connection.info.dbname


def _primary_of(place: Mapping[str, Any]) -> dict[str, str]:
    """Restricts several servers to the primary, unless the address chooses otherwise."""
    usual = {option.keyword.decode(): option.val for option in Conninfo.get_defaults()}
    host = usual["host"] or b""
    hosts = str(place.get("host") or place.get("hostaddr") or host.decode())
    chosen = place.get("target_session_attrs") or usual["target_session_attrs"] != b"any"
    return {"target_session_attrs": "primary"} if "," in hosts and not chosen else {}


def _reached(error: psycopg.OperationalError) -> str | None:
    """Describes where a connection was attempted, including parts from environment and service."""
    attempted = error.pgconn
    if attempted is None or not attempted.host:
        return None
    host, port, database = (
        bytes(part or b"").decode("utf-8", "replace")
        for part in (attempted.host, attempted.port, attempted.db)
    )
    return f"{host}:{port}/{database}"


def _liveness_settings(place: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the address's own settings for a silent server."""
    return {name: place[name] for name in ("connect_timeout", *LIVENESS) if place.get(name)}


def _named(error: psycopg.OperationalError, where: str) -> PostgresError:
    text = str(error)
    for pattern, kind, fact, hint in _REASONS:
        if pattern.search(text):
            return kind(f"cannot connect to Postgres: {fact}", detail=where, hint=hint)
    return PostgresUnavailableError(
        "cannot connect to Postgres now",
        detail=f"{where}: {text.strip().splitlines()[-1][:200]}",
        hint="see the server's log; a starting or full server may answer later",
    )
