"""Managed servers: the provider, and what its administrators do without being superusers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from psycopg import Connection


@dataclass(frozen=True, slots=True)
class Provider:
    """A managed Postgres.

    Attributes:
        key: Name in commands and settings.
        title: Its name.
        mark: A role that exists exactly on servers of this provider.
        logical: How to enable logical decoding.
        replication: SQL that permits a role to replicate; `{}` is the role, quoted.
        parameters: Where to set other server parameters.
    """

    key: str
    title: str
    mark: str
    logical: str
    replication: str
    parameters: str

    def raises(self, **parameters: int) -> str:
        """Describes how to set parameters of the server."""
        listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
        return f"set {listed} in {self.parameters}, and restart the server"


RDS: Final = Provider(
    "rds",
    "Amazon RDS or Aurora",
    "rds_superuser",
    "set rds.logical_replication = 1 in the parameter group, and reboot the instance",
    "GRANT rds_replication TO {};",
    "the parameter group",
)
CLOUD_SQL: Final = Provider(
    "cloudsql",
    "Google Cloud SQL",
    "cloudsqlsuperuser",
    "set the flag cloudsql.logical_decoding = on, which restarts the instance",
    "ALTER ROLE {} REPLICATION;",
    "the instance's flags",
)
AZURE: Final = Provider(
    "azure",
    "Azure Database for PostgreSQL",
    "azure_pg_admin",
    "set the server parameter wal_level = logical, and restart the server",
    "ALTER ROLE {} REPLICATION;",
    "the server parameters",
)
SUPABASE: Final = Provider(
    "supabase",
    "Supabase",
    "supabase_admin",
    "restore wal_level = logical, which is Supabase's default",
    "ALTER ROLE {} REPLICATION;",
    "the database settings (supabase postgres-config update)",
)
PROVIDERS: Final = {each.key: each for each in (RDS, CLOUD_SQL, AZURE, SUPABASE)}

_MARKS: Final = "SELECT rolname::text FROM pg_roles WHERE rolname = ANY (%s::text[])"
_MEMBER: Final = """
SELECT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication'
                  AND pg_has_role(current_user, r.oid, 'USAGE'))
"""


def detect(connection: Connection[Any]) -> Provider | None:
    """Returns the provider that runs the server; None if it is no known one."""
    marks = [each.mark for each in PROVIDERS.values()]
    found = {name for (name,) in connection.execute(_MARKS, (marks,)).fetchall()}
    return next((each for each in PROVIDERS.values() if each.mark in found), None)


def replicates_by_membership(connection: Connection[Any]) -> bool:
    """Returns whether the role may replicate as a member of `rds_replication`.

    Amazon's servers require this membership, where Postgres requires the attribute.
    """
    return connection.execute(_MEMBER).fetchone() == (True,)
