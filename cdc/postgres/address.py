"""The address of the source database, for programs that do not read DSNs like libpq.

libpq completes an address from the environment, a service file and a passfile, and chooses one of
several servers. Other code takes the parts from a session (`resolve`), so that the connector
reaches the same server as the same role with the same password as everything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from cdc.postgres import session
from cdc.postgres.check import Check, CheckState
from cdc.postgres.errors import HostUnknownError, PostgresError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from psycopg import Connection

_PORT: Final = 5432
_LOOPBACK: Final = "127.0.0.1"
_PLACE: Final = frozenset(
    {"host", "port", "user", "password", "passfile", "dbname", "options", "service"}
    | {"servicefile", "target_session_attrs", "channel_binding", "require_auth", "requirepeer"}
)
"""Keywords of an address for server and role, besides those that begin with `ssl`."""


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A Postgres database and the role that connects to it.

    Attributes:
        host: Name or address.
        port: TCP port.
        user: Role; needs LOGIN, REPLICATION and SELECT on the captured tables.
        password: Its password; empty if the server requires none.
        database: Name of the database.
        tls: libpq's `ssl…` words (sslmode, sslrootcert, sslcert, sslkey), as given.
        options: Options of its sessions, in the server's own form.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    tls: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: str = ""

    @classmethod
    def of(cls, connection: Connection[Any], dsn: str) -> DatabaseAddress:
        """Returns the address and role of a session, wherever they are configured.

        Args:
            connection: The session.
            dsn: How it was opened.
        """
        words, info = _effective(connection), connection.info
        # psycopg resolves names itself, so the session reports an address, not the given name
        number = conninfo_to_dict(dsn).get("hostaddr") or _usual("hostaddr")
        # the name is needed if the server's certificate is compared with it
        verified = words.get("sslmode", "").startswith("verify")
        return cls(
            info.host if verified or not number else str(number),
            info.port,
            info.user,
            info.password,
            info.dbname,
            {key: value for key, value in words.items() if key.startswith("ssl")},
            words.get("options", ""),
        )

    @classmethod
    def parse(cls, dsn: str) -> DatabaseAddress:
        """Parses an address that is complete by itself; see `resolve` for any other.

        Raises:
            HostUnknownError: It cannot be parsed, or names several hosts.
        """
        try:
            words = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        except Exception:  # noqa: BLE001  # its message repeats the DSN, password and all
            raise HostUnknownError(
                "the database address cannot be read",
                hint="postgresql://user:password@host:5432/database",
            ) from None
        host, port = words.get("host", "localhost"), words.get("port", str(_PORT))
        if "," in host or not port.isdigit():
            raise HostUnknownError(
                "the database address must name one host and one port",
                hint="capture reads from the primary; give its address",
            )
        user = words.get("user", "postgres")
        tls = {key: value for key, value in words.items() if key.startswith("ssl")}
        return cls(host, int(port), user, words.get("password", ""), words.get("dbname", user), tls)

    @property
    def is_socket(self) -> bool:
        """Returns whether the host is a folder of sockets, or an abstract socket."""
        return self.host.startswith(("/", "@"))


def resolve(dsn: str) -> DatabaseAddress:
    """Returns the server of a DSN as a TCP address for the connector.

    Raises:
        PostgresError: The database cannot be reached.
        HostUnknownError: It can be reached by a socket, but not over TCP with the same role.
    """
    with session.connect(dsn) as connection:
        return over_tcp(connection, dsn)


def over_tcp(connection: Connection[Any], dsn: str) -> DatabaseAddress:
    """Returns the address of a session for programs that need TCP; see `resolve`.

    Args:
        connection: A session.
        dsn: How it was opened.
    """
    found = DatabaseAddress.of(connection, dsn)
    if not found.is_socket:
        return found
    port = connection.execute("SELECT current_setting('port')").fetchone()
    try:
        tcp = make_conninfo(dsn, host=_LOOPBACK, hostaddr="", port=port[0] if port else _PORT)
        with session.connect(tcp) as other:
            return DatabaseAddress.of(other, tcp)
    except PostgresError as error:
        raise HostUnknownError(
            "the connector needs TCP, and the DSN names a Unix socket",
            detail=f"{_LOOPBACK}, same role: {error.message}",
            hint="set a host and password in dsn, or in capture_dsn for the connector only",
        ) from None


def check(connection: Connection[Any], dsn: str, connector_dsn: str) -> Check:
    """Checks that the connector reaches the same database as the sessions of this program.

    Args:
        connection: A session.
        dsn: How it was opened.
        connector_dsn: The address for the connector.
    """
    try:
        found = over_tcp(connection, dsn) if connector_dsn == dsn else resolve(connector_dsn)
    except PostgresError as error:
        return Check("connector", CheckState.FAIL, error.message, error.detail, error.hint)
    how = "with a password" if found.password else "without a password"
    return Check("connector", CheckState.OK, f"{found.host}:{found.port} as {found.user}, {how}")


def completed(dsn: str, connection: Connection[Any]) -> str:
    """Completes a DSN from the environment, to be stored in a secret's file.

    A service and a passfile stay references: they are the user's files, read at each connection.

    Args:
        dsn: The DSN as configured.
        connection: A session that was opened with it.
    """
    given = conninfo_to_dict(dsn)
    if given.get("service"):
        return dsn
    effective = _effective(connection)
    effective.pop("service", None)  # its settings are among the keywords
    # a session has one of several servers; and an address in numbers only if it was looked up
    listed = {name: value for name in ("host", "port") if "," in (value := _usual(name))}
    number = {"hostaddr": value} if (value := _usual("hostaddr")) else {}
    lacking = {k: v for k, v in {**effective, **listed, **number}.items() if k not in given}
    return make_conninfo(dsn, **lacking) if lacking else dsn


def _usual(name: str) -> str:
    """Returns libpq's default for a missing keyword; empty if there is none."""
    found = {option.keyword: option.val for option in Conninfo.get_defaults()}
    return (found.get(name.encode()) or b"").decode()


def _effective(connection: Connection[Any]) -> dict[str, str]:
    """Returns the keywords of a session, without those that equal libpq's defaults."""
    return {
        option.keyword.decode(): option.val.decode()
        for option in connection.pgconn.info
        if option.val
        and (option.val != option.compiled or option.keyword in {b"user", b"dbname"})
        and (option.keyword.decode() in _PLACE or option.keyword.startswith(b"ssl"))
    }
