"""Event triggers of the source, which record each shape change in the transaction that makes it.

The lock of an ALTER blocks all other writers until its transaction ends. The log position of the
record therefore separates the row changes of that table: all earlier ones have the old shape, and
all later ones the new shape, also within that transaction.

If the record cannot be written, the trigger raises a warning and never blocks the DDL; the next
comparison finds the change (`history.observe`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import own_schema, own_schema_owner, row_key
from cdc.schema_change import type_parts

if TYPE_CHECKING:
    from psycopg import Connection

_PARTS: Final = type_parts.LABELS_AND_ATTRIBUTES.format(type="a.atttypid")
SHAPE: Final = f"""
SELECT jsonb_build_object(
    'oid', c.oid::bigint, 'schema', n.nspname, 'table', c.relname, 'last_number', c.relnatts,
    'columns', coalesce((
        SELECT jsonb_agg((jsonb_build_object(
                   'number', a.attnum, 'name', a.attname,
                   'type', format_type(a.atttypid, a.atttypmod),
                   'type_id', jsonb_build_array(a.atttypid::bigint, a.atttypmod),
                   'not_null', a.attnotnull,
                   'default', a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
                   'missing', CASE WHEN c.relkind <> 'p' THEN
                       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END
                   ELSE (
                       SELECT (m.attmissingval::text::text[])[1]
                         FROM pg_partition_tree(c.oid) p
                         JOIN pg_attribute m ON m.attrelid = p.relid AND m.attname = a.attname
                        WHERE p.isleaf AND m.atthasmissing AND NOT m.attisdropped
                        ORDER BY m.attrelid LIMIT 1) END)
                   || CASE WHEN a.atttypid < {type_parts.FIRST_OWN_OID} THEN '{{{{}}}}'
                      ELSE coalesce(({_PARTS}), '{{{{}}}}') END) ORDER BY a.attnum)
          FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND {row_key.CAPTURED}), '[]'),
    'key', coalesce((SELECT to_jsonb(i.key) FROM ({row_key.KEY}) i), '[]'),
    'partitions', CASE WHEN c.relkind <> 'p' THEN '[]' ELSE coalesce((
        SELECT jsonb_agg(jsonb_build_array(
                   p.relid::oid::bigint, pn.nspname || '.' || pc.relname) ORDER BY p.relid::oid)
          FROM pg_partition_tree(c.oid) p
          JOIN pg_class pc ON pc.oid = p.relid
          JOIN pg_namespace pn ON pn.oid = pc.relnamespace
         WHERE p.isleaf AND p.relid <> c.oid), '[]') END)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = {{oid}}
"""  # noqa: S608  # built from constants only
"""The shape of the table with an oid, as `TableShape.of_json` parses it; no row without a table."""

# A composite type, or a table whose rows are a type that something else uses.
_IN_COLUMNS: Final = """(c.relkind = 'c' OR EXISTS (
            SELECT FROM pg_type r
              JOIN pg_depend u ON u.refclassid = 'pg_type'::regclass
                              AND u.refobjid IN (r.oid, r.typarray) AND u.deptype = 'n'
                              AND u.classid IN ('pg_class'::regclass, 'pg_type'::regclass)
             WHERE r.oid = c.reltype))"""

# Rewrite reasons: 2 for defaults of new columns, 4 for changed types. Others change no value.
_BODY: Final = f"""
DECLARE
    filled text := coalesce(current_setting('headwater.filled', true), '');
    changed oid;
    everything boolean := false;
    touched bigint[];
BEGIN
    IF tg_event = 'table_rewrite' THEN
        changed := pg_event_trigger_table_rewrite_oid();
        IF pg_event_trigger_table_rewrite_reason() & 6 <> 0 THEN
            changed := coalesce(pg_partition_root(changed), changed);
            PERFORM set_config('headwater.filled', filled || ' ' || changed, true);
        END IF;
        RETURN;
    ELSIF tg_event = 'sql_drop' THEN
        everything := EXISTS (
            SELECT FROM pg_event_trigger_dropped_objects() d
             WHERE NOT d.is_temporary AND d.object_type IN (
                   'table', 'table column', 'table constraint', 'index', 'type', 'schema'));
    ELSE
        SELECT coalesce(bool_or(d.classid <> 'pg_class'::regclass OR {_IN_COLUMNS}), false),
               array_agg(coalesce(pg_partition_root(coalesce(x.indrelid, d.objid))::oid,
                                  coalesce(x.indrelid, d.objid))::bigint)
          INTO everything, touched
          FROM pg_event_trigger_ddl_commands() d
          LEFT JOIN pg_class c ON c.oid = d.objid AND d.classid = 'pg_class'::regclass
          LEFT JOIN pg_index x ON x.indexrelid = c.oid
         WHERE d.classid IN ('pg_class'::regclass, 'pg_type'::regclass, 'pg_namespace'::regclass);
    END IF;
    -- whoever owns the table, or has put a trigger on it, would have it run with the rights of a
    -- superuser: then nothing is written, and the change is found by looking
    IF NOT {own_schema_owner.TRUSTED} THEN
        RETURN;
    END IF;
    INSERT INTO headwater.schema_changes (table_oid, lsn, command, rewritten, shape)
    SELECT known.table_oid, pg_current_wal_insert_lsn(), tg_tag, now.rewritten, now.shape
      FROM (SELECT DISTINCT ON (table_oid) table_oid, shape
              FROM headwater.schema_changes
             WHERE everything OR table_oid = ANY (touched)
             ORDER BY table_oid, id DESC) AS known
     CROSS JOIN LATERAL (
           SELECT ({SHAPE.format(oid="known.table_oid::oid")}) AS shape,
                  known.table_oid::text = ANY (string_to_array(filled, ' ')) AS rewritten) AS now
     WHERE known.shape IS NOT NULL AND (now.rewritten OR known.shape IS DISTINCT FROM now.shape);
    IF filled <> '' THEN
        PERFORM set_config('headwater.filled', '', true);
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'headwater could not note a change of schema: %', sqlerrm;
END
"""  # noqa: S608  # built from constants only

# Dropped and created, never replaced: a replaced function keeps its owner, who may alter it.
_FUNCTION: Final = f"""
DROP FUNCTION IF EXISTS headwater.note_schema_change();
DROP FUNCTION IF EXISTS headwater.table_shape(bigint);
CREATE FUNCTION headwater.note_schema_change() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'iso_8601'
SET extra_float_digits = 1 SET bytea_output = 'hex'
AS $note${_BODY}$note$;
"""

_TRIGGERS: Final = {
    "headwater_ddl": "ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE INDEX',"
    " 'ALTER TYPE', 'ALTER DOMAIN', 'ALTER SCHEMA')",
    "headwater_drop": "sql_drop WHEN TAG IN ('ALTER TABLE', 'DROP TABLE', 'DROP INDEX',"
    " 'DROP TYPE', 'DROP DOMAIN', 'DROP SCHEMA', 'DROP OWNED', 'DROP EXTENSION')",
    "headwater_rewrite": "table_rewrite",
}
_ACTIVE: Final = f"""
SELECT count(*) = cardinality(%(names)s::text[]) AND {own_schema_owner.TRUSTED}
  FROM pg_event_trigger e
  JOIN pg_proc p ON p.oid = e.evtfoid
  JOIN pg_roles r ON r.oid = p.proowner AND r.rolsuper
 WHERE e.evtname = ANY (%(names)s::text[]) AND e.evtenabled IN ('O', 'A') AND p.prosrc = %(body)s
"""  # noqa: S608  # built from constants only
# The name does not suffice: a foreign trigger may have the same name.
_EXISTING: Final = """
SELECT evtname, evtfoid = to_regprocedure('headwater.note_schema_change()')
  FROM pg_event_trigger WHERE evtname = ANY (%s::text[]) ORDER BY 1
"""


def statements() -> str:
    """Returns the SQL for a superuser who creates the triggers by hand; it can be repeated.

    The superuser must own the schema already: see `own_schema_owner`.
    """
    made = [
        f"CREATE EVENT TRIGGER {name} ON {event}\n"
        "    EXECUTE FUNCTION headwater.note_schema_change();"
        for name, event in _TRIGGERS.items()
    ]
    return "\n".join([dropped(), _FUNCTION.strip(), *made])


def dropped() -> str:
    """Returns the SQL that drops the triggers, including those of an earlier version."""
    return "\n".join(f"DROP EVENT TRIGGER IF EXISTS {name};" for name in _TRIGGERS)


def active(connection: Connection[Any]) -> bool:
    """Returns whether the source records changes with the triggers of this version."""
    given = {"names": list(_TRIGGERS), "body": _BODY}
    row = connection.execute(_ACTIVE.encode(), given).fetchone()
    return bool(row and row[0])


def existing(connection: Connection[Any]) -> list[str]:
    """Returns the names of Headwater's existing triggers, enabled or not."""
    found = connection.execute(_EXISTING, (list(_TRIGGERS),)).fetchall()
    return [str(name) for name, ours in found if ours]


def allowed(connection: Connection[Any]) -> bool:
    """Returns whether the role may create the triggers, and their names are not in use."""
    found = connection.execute(_EXISTING, (list(_TRIGGERS),)).fetchall()
    return superuser(connection) and all(ours for _, ours in found)


def superuser(connection: Connection[Any]) -> bool:
    """Returns whether the role is a superuser; only they may create or drop event triggers."""
    row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    return bool((row.fetchone() or (False,))[0])


def ensure(connection: Connection[Any]) -> list[str]:
    """Creates the triggers, if the role may; returns what was changed.

    Without triggers, `history.observe` detects changes by comparison.

    Raises:
        SchemaOwnerError: The schema contains objects that would run with the role's privileges.
    """
    if not allowed(connection) or active(connection):
        return []
    with connection.transaction():
        connection.execute(dropped().encode())
        own_schema_owner.take(connection)
        own_schema.made(connection)  # taking the schema has dropped the functions of another owner
        connection.execute(statements().encode())
    return ["changes of tables are noted by the source itself"]


def drop(connection: Connection[Any]) -> bool:
    """Drops the triggers, unless a source of this database is captured.

    Returns:
        Whether triggers existed and were dropped; False if the role may not drop them.
    """
    row = connection.execute("SELECT EXISTS (SELECT FROM headwater.captures)").fetchone()
    captured = row is None or row[0]
    return not captured and allowed(connection) and drop_all(connection)


def drop_all(connection: Connection[Any]) -> bool:
    """Removes Headwater's triggers; returns whether there were any."""
    names = existing(connection)
    with connection.transaction():
        for name in names:
            connection.execute(f"DROP EVENT TRIGGER IF EXISTS {name}".encode())
    return bool(names)
