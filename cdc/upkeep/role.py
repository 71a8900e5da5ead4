"""The capture role: the privileges that it needs, as SQL for an administrator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from cdc.capture import HEARTBEAT_TABLE
from cdc.postgres import own_schema, own_schema_owner, publication
from cdc.schema_change import trigger

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cdc.capture import CaptureSpec
    from cdc.postgres.provider import Provider
    from cdc.table import TableName

ROLE: Final = "headwater_capture"
"""Default name of the role."""


@dataclass(frozen=True, slots=True)
class RoleStatement:
    """One statement for an administrator.

    Attributes:
        sql: The statement, with its semicolon.
        why: Its purpose.
    """

    sql: str
    why: str


def statements(  # noqa: PLR0913  # for whom, and on which server
    spec: CaptureSpec,
    database: str,
    name: str = ROLE,
    *,
    alone: bool = False,
    columns: Mapping[TableName, Sequence[str]] | None = None,
    managed: Provider | None = None,
) -> list[RoleStatement]:
    """Returns the SQL that gives a role exactly the privileges to capture a source.

    The role has LOGIN, REPLICATION and SELECT. It is no superuser, owns nothing and does not bypass
    row security. It gets no password here: set it with psql's command `password`, which hides it.

    Args:
        spec: The capture.
        database: Name of the source's database.
        name: Name of the role.
        alone: Whether the role also stores the state of the capture, so that no other role is
            needed (`dsn`); otherwise it only captures (`capture_dsn`).
        columns: Columns that it may read, for each table that it may read only in part.
        managed: Provider of a managed server, where the administrator is no superuser: statements
            for superusers are omitted, and shape changes are detected by comparison.
    """
    role = sql.Identifier(name)
    schemas = sorted({table.schema for table in spec.captured} | {HEARTBEAT_TABLE.schema})
    return [
        *_objects(spec, managed),
        *_login(role, managed),
        _said(
            "it reaches the database",
            "GRANT CONNECT ON DATABASE {} TO {}",
            sql.Identifier(database),
            role,
        ),
        _said(
            "it finds the tables",
            "GRANT USAGE ON SCHEMA {} TO {}",
            _listed(sql.Identifier(schema) for schema in schemas),
            role,
        ),
        *_reads(spec, role, columns or {}),
        *_state(role, alone=alone),
    ]


def _login(role: sql.Identifier, managed: Provider | None) -> list[RoleStatement]:
    if managed is None:
        return [_said("it logs in and reads the log", "CREATE ROLE {} LOGIN REPLICATION", role)]
    replicates = managed.replication.format(role.as_string(None))
    return [
        _said("it logs in", "CREATE ROLE {} LOGIN", role),
        RoleStatement(replicates, "it reads the log"),
    ]


def _objects(spec: CaptureSpec, managed: Provider | None) -> list[RoleStatement]:
    """Returns the objects that the role may not create: the schema, and the publication.

    To create the publication, it would have to own all tables.
    """
    made = publication.creation(spec.publication, sorted(set(spec.captured)))
    found = [
        RoleStatement(
            own_schema.script().strip(), "schema headwater: the heartbeat and what is captured"
        ),
        RoleStatement(made.as_string(None) + ";", "what leaves the database"),
    ]
    if managed is not None:
        return found
    return [
        RoleStatement(trigger.dropped(), "none of them runs while the schema is being taken"),
        RoleStatement(
            own_schema_owner.TAKE.strip(), "no other role's triggers run with your rights"
        ),
        *found,
        RoleStatement(
            trigger.statements(), "changes of tables are noted, in order (a superuser's)"
        ),
    ]


def _reads(
    spec: CaptureSpec, role: sql.Identifier, columns: Mapping[TableName, Sequence[str]]
) -> list[RoleStatement]:
    whole = [table for table in spec.required if table not in columns]
    found = []
    if whole:
        tables = _listed(sql.Identifier(table.schema, table.name) for table in whole)
        found.append(_said("it reads their rows", "GRANT SELECT ON {} TO {}", tables, role))
    for table, names in columns.items():
        found.append(
            _said(
                "it reads these columns alone",
                "GRANT SELECT ({}) ON {} TO {}",
                _listed(map(sql.Identifier, names)),
                sql.Identifier(table.schema, table.name),
                role,
            )
        )
    return found


def _state(role: sql.Identifier, *, alone: bool) -> list[RoleStatement]:
    heartbeat = sql.Identifier(HEARTBEAT_TABLE.schema, HEARTBEAT_TABLE.name)
    if not alone:
        grant = "GRANT SELECT, INSERT, UPDATE ON {} TO {}"
        return [_said("it writes the heartbeat", grant, heartbeat, role)]
    grant = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {}"
    schema = sql.Identifier(HEARTBEAT_TABLE.schema)
    return [_said("it keeps the state of capture", grant, schema, role)]


def _said(why: str, template: str, *parts: sql.Composable) -> RoleStatement:
    # every template is a constant of this module
    return RoleStatement(sql.SQL(template).format(*parts).as_string(None) + ";", why)


def _listed(parts: Iterable[sql.Composable]) -> sql.Composable:
    return sql.SQL(", ").join(parts)
