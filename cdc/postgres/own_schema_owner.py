"""The owner of the schema `headwater`, and the code that a superuser would run by writing to it.

A superuser who inserts into a table runs its triggers, its rules, and the functions in its defaults
and conditions. The event triggers therefore write to the schema only if it belongs to a superuser
and contains nothing that calls user-defined functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import Error

from cdc.postgres.errors import SchemaOwnerError

if TYPE_CHECKING:
    from psycopg import Connection

# Built-in objects are pinned, and have no entry in pg_depend.
PLAIN: Final = """
    c.relkind = 'r' AND NOT c.relhasrules AND NOT c.relrowsecurity
    AND NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid)
    AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = c.oid)
    AND NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid)
    AND NOT EXISTS (  -- begins with what belongs to the table: pg_depend may be large
        SELECT FROM (
            SELECT 'pg_class'::regclass::oid AS catalog, c.oid
             UNION ALL
            SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i WHERE i.indrelid = c.oid
             UNION ALL
            SELECT 'pg_attrdef'::regclass, a.oid FROM pg_attrdef a WHERE a.adrelid = c.oid
             UNION ALL
            SELECT 'pg_constraint'::regclass, k.oid FROM pg_constraint k WHERE k.conrelid = c.oid
        ) AS own
          JOIN pg_depend d ON d.classid = own.catalog AND d.objid = own.oid
         WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass,
                                'pg_opclass'::regclass, 'pg_opfamily'::regclass))
"""
"""Whether a write to the table `c`, a row of `pg_class`, calls only the server's own functions."""

TRUSTED: Final = f"""
EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = 'headwater' AND c.relname = 'schema_changes'
           AND NOT EXISTS (SELECT FROM pg_roles r
                            WHERE r.oid IN (n.nspowner, c.relowner) AND NOT r.rolsuper)
           AND {PLAIN})
"""  # noqa: S608  # built from constants only
"""Whether a superuser may write to the table of schema changes."""

TAKE: Final = f"""
DO $take$
DECLARE
    part record;
BEGIN
    -- what is there becomes the administrator's first: from then on nobody else can alter it
    FOR part IN SELECT r.rolname FROM pg_namespace n JOIN pg_roles r ON r.oid = n.nspowner
                 WHERE n.nspname = 'headwater' AND NOT r.rolsuper LOOP
        ALTER SCHEMA headwater OWNER TO CURRENT_USER;
        EXECUTE format('GRANT USAGE ON SCHEMA headwater TO %I', part.rolname);
    END LOOP;
    FOR part IN SELECT p.oid::regprocedure AS name
                  FROM pg_proc p JOIN pg_roles r ON r.oid = p.proowner
                 WHERE p.pronamespace = to_regnamespace('headwater') AND NOT r.rolsuper LOOP
        EXECUTE format('DROP FUNCTION %s', part.name);
    END LOOP;
    FOR part IN SELECT c.oid::regclass AS name, c.relkind, r.rolname
                  FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
                 WHERE c.relnamespace = to_regnamespace('headwater') AND NOT r.rolsuper
                   AND c.relkind IN ('r', 'p', 'v', 'm', 'f') LOOP
        EXECUTE format('ALTER TABLE %s OWNER TO CURRENT_USER', part.name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO %I', part.name, part.rolname);
    END LOOP;
    FOR part IN SELECT c.oid::regclass AS name FROM pg_class c
                 WHERE c.relnamespace = to_regnamespace('headwater')
                   AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT ({PLAIN}) LOOP
        RAISE EXCEPTION '% is not as Headwater made it', part.name
            USING HINT = 'look at its triggers, rules, defaults and conditions, and drop them';
    END LOOP;
END
$take$;
"""  # noqa: S608  # built from constants only
"""Statement that an administrator runs first: it transfers the schema and its contents to the
administrator; the former owner may still read and write its rows."""


def trusted(connection: Connection[Any]) -> bool:
    """Returns whether a superuser may write to the table of schema changes."""
    row = connection.execute(f"SELECT {TRUSTED}".encode()).fetchone()
    return bool(row and row[0])


def take(connection: Connection[Any]) -> None:
    """Transfers the schema to the session's role, which is a superuser.

    Raises:
        SchemaOwnerError: It contains objects that Headwater did not create.
    """
    try:
        connection.execute(TAKE.encode())
    except Error as error:
        raise SchemaOwnerError(
            "schema headwater contains objects that Headwater did not create",
            detail=error.diag.message_primary or error.sqlstate,
            hint=error.diag.message_hint,
        ) from error


def take_as_superuser(connection: Connection[Any]) -> None:
    """Transfers the schema to the session's role if that is a superuser, before it writes there.

    Raises:
        SchemaOwnerError: It contains objects that Headwater did not create.
    """
    row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    if (row.fetchone() or (False,))[0]:
        take(connection)
