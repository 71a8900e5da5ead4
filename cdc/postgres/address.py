"""Where the source database is, taken apart for those who do not read DSNs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict

from cdc.postgres.errors import HostUnknownError

if TYPE_CHECKING:
    from collections.abc import Mapping

_PORT: Final = 5432


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """A Postgres database and who connects to it.

    Attributes:
        host: Name or address.
        port: TCP port.
        user: Role; needs LOGIN, REPLICATION and SELECT on the captured tables.
        password: Its password, empty if the server asks for none.
        database: Name of the database.
        tls: libpq's `ssl…` words (sslmode, sslrootcert, sslcert, sslkey), as given.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    tls: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, dsn: str) -> DatabaseAddress:
        """Reads a `postgresql://` address or libpq's `key=value` form.

        Raises:
            HostUnknownError: It cannot be read, or names several hosts.
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
