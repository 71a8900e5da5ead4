"""Grants a role the right to append and read, for one tenant or for tenants of its choice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from eventstore.errors import AccessRefusedError, SchemaMissingError
from eventstore.model.names import check_tenant
from eventstore.postgres.connection import check_address
from eventstore.postgres.errors import translated

if TYPE_CHECKING:
    from psycopg import Connection

# The owner of the tables, and roles that may act as the owner, bypass row-level security.
_ROLE: Final = """
SELECT rolcanlogin,
       rolsuper OR rolbypassrls OR pg_has_role(
           oid, (SELECT relowner FROM pg_class WHERE oid = to_regclass('eventstore.events')),
           'USAGE')
  FROM pg_roles WHERE rolname = %s
"""
# Functions of each schema return the privileges that an application needs.
_GRANTS: Final = """
SELECT pronamespace::regnamespace::text, proname
  FROM pg_proc
 WHERE pronamespace IN (to_regnamespace('eventstore'), to_regnamespace('eventstore_keys'))
   AND proname LIKE 'grant\\_%'
   AND proargtypes = ARRAY['name'::regtype::oid]::oidvector
 ORDER BY 1, 2
"""
_BIND: Final = """
INSERT INTO eventstore.tenant_roles (role, tenant) VALUES (%s, %s) ON CONFLICT (role) DO NOTHING
"""
_BOUND: Final = "SELECT tenant FROM eventstore.tenant_roles WHERE role = %s"


def grant(dsn: str, role: str, *, tenant: str | None = None) -> list[str]:
    """Lets a role use the event store, in one transaction; idempotent.

    Args:
        dsn: The database, as the owner of the event store.
        role: The application's role; it must exist.
        tenant: Binds the role to this tenant permanently: its sessions can read and write no other
            tenant. By default, sessions choose the tenant that they act for.

    Returns:
        The changes, one line each.

    Raises:
        NameRefusedError: The tenant's name is invalid.
        AccessRefusedError: The role does not exist, bypasses row-level security or belongs to
            another tenant, or the DSN's own role may not grant.
        SchemaMissingError: The database has no event store.
    """
    if tenant is not None:
        check_tenant(tenant)
    check_address(dsn)
    try:
        with psycopg.connect(dsn) as connection:
            return _grant(connection, role, tenant)
    except psycopg.errors.InsufficientPrivilege as error:
        raise AccessRefusedError(
            "the role may not grant access to the event store",
            detail=error.diag.message_primary,
            hint="run it as the owner of the event store",
        ) from error
    except psycopg.Error as error:
        raise translated(error) from error


def _grant(connection: Connection[Any], role: str, tenant: str | None) -> list[str]:
    functions = connection.execute(_GRANTS).fetchall()
    if not functions:
        raise SchemaMissingError("the database has no event store", hint="headwater db upgrade")
    _check_role(connection, role, tenant)
    for schema, name in functions:
        call = sql.SQL("SELECT {}.{}(%s)").format(sql.Identifier(schema), sql.Identifier(name))
        connection.execute(call, (role,))
    done = [f"{schema}.{name}" for schema, name in functions]
    if tenant is not None:
        _bind(connection, role, tenant)
        done.append(f"bound to tenant {tenant}")
    return done


def _check_role(connection: Connection[Any], role: str, tenant: str | None) -> None:
    found = connection.execute(_ROLE, (role,)).fetchone()
    if found is None:
        raise AccessRefusedError(
            "the server has no such role",
            detail=f"{role!r:.80}",
            hint="CREATE ROLE … LOGIN PASSWORD …",
        )
    can_log_in, unheld = found
    if unheld:
        raise AccessRefusedError(
            "the role bypasses row-level security",
            detail="it is a superuser, has BYPASSRLS, or owns the event store",
            hint="create a separate role for the application: CREATE ROLE … LOGIN PASSWORD …",
        )
    if tenant is not None and not can_log_in:
        raise AccessRefusedError(
            "only a login role can be bound to a tenant",
            hint="bind each login role with headwater db grant LOGIN --tenant TENANT",
        )


def _bind(connection: Connection[Any], role: str, tenant: str) -> None:
    connection.execute(_BIND, (role, tenant))
    bound = connection.execute(_BOUND, (role,)).fetchone()
    if bound != (tenant,):
        raise AccessRefusedError(
            "the role is permanently bound to another tenant",
            detail=f"tenant {bound[0] if bound else ''}",
            hint="use another role for this tenant",
        )
