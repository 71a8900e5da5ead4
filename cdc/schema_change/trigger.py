"""What the source runs by itself: it notes each change of a captured table in its own transaction.

The lock of an ALTER keeps every other writer out until its transaction ends. So with the position
at which the note is written, all changes of rows of that table before it have the old shape, and
all after it the new one, within that transaction too.

A note that cannot be written must never keep somebody's DDL from happening: it becomes a warning,
and the change is found by the next look (`history.observe`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.postgres import row_key

if TYPE_CHECKING:
    from psycopg import Connection

SHAPE: Final = f"""
SELECT jsonb_build_object(
    'oid', c.oid::bigint, 'schema', n.nspname, 'table', c.relname, 'last_number', c.relnatts,
    'columns', coalesce((
        SELECT jsonb_agg(jsonb_build_object(
                   'number', a.attnum, 'name', a.attname,
                   'type', format_type(a.atttypid, a.atttypmod),
                   'type_id', jsonb_build_array(a.atttypid::bigint, a.atttypmod),
                   'not_null', a.attnotnull,
                   'default', a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
                   'missing', (
                       SELECT (m.attmissingval::text::text[])[1] FROM pg_attribute m
                        WHERE m.atthasmissing AND m.attname = a.attname AND NOT m.attisdropped
                          AND (m.attrelid = c.oid OR m.attrelid IN (
                               SELECT relid FROM pg_partition_tree(c.oid) WHERE isleaf))
                        LIMIT 1)) ORDER BY a.attnum)
          FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
         WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           AND {row_key.CAPTURED}), '[]'),
    'key', coalesce((SELECT to_jsonb(i.key) FROM ({row_key.KEY}) i), '[]'),
    'partitions', coalesce((
        SELECT jsonb_agg(jsonb_build_array(
                   p.relid::oid::bigint, pn.nspname || '.' || pc.relname) ORDER BY p.relid::oid)
          FROM pg_partition_tree(c.oid) p
          JOIN pg_class pc ON pc.oid = p.relid
          JOIN pg_namespace pn ON pn.oid = pc.relnamespace
         WHERE p.isleaf AND p.relid <> c.oid), '[]'))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = {{oid}}
"""  # noqa: S608  # put together from constants only
"""Shape of the table with an oid, as `TableShape.of_json` reads it; no row if there is none."""

# 2: values of new columns; 4: values of columns of another type. The rest changes no value.
_FUNCTIONS: Final = f"""
CREATE OR REPLACE FUNCTION headwater.table_shape(bigint) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $shape${SHAPE.format(oid="$1::oid")}$shape$;

CREATE OR REPLACE FUNCTION headwater.note_schema_change() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO' SET intervalstyle = 'iso_8601'
SET extra_float_digits = 1 SET bytea_output = 'hex'
AS $note$
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
        SELECT coalesce(bool_or(d.classid <> 'pg_class'::regclass), false),
               array_agg(coalesce(pg_partition_root(coalesce(x.indrelid, d.objid))::oid,
                                  coalesce(x.indrelid, d.objid))::bigint)
          INTO everything, touched
          FROM pg_event_trigger_ddl_commands() d
          LEFT JOIN pg_index x ON x.indexrelid = d.objid AND d.classid = 'pg_class'::regclass
         WHERE d.classid IN ('pg_class'::regclass, 'pg_type'::regclass, 'pg_namespace'::regclass);
    END IF;
    INSERT INTO headwater.schema_changes (table_oid, lsn, command, rewritten, shape)
    SELECT known.table_oid, pg_current_wal_insert_lsn(), tg_tag, now.rewritten, now.shape
      FROM (SELECT DISTINCT ON (table_oid) table_oid, shape
              FROM headwater.schema_changes
             WHERE everything OR table_oid = ANY (touched)
             ORDER BY table_oid, id DESC) AS known
     CROSS JOIN LATERAL (
           SELECT headwater.table_shape(known.table_oid) AS shape,
                  known.table_oid::text = ANY (string_to_array(filled, ' ')) AS rewritten) AS now
     WHERE known.shape IS NOT NULL AND (now.rewritten OR known.shape IS DISTINCT FROM now.shape);
    IF filled <> '' THEN
        PERFORM set_config('headwater.filled', '', true);
    END IF;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'headwater could not note a change of schema: %', sqlerrm;
END
$note$;
"""  # noqa: S608  # put together from constants only

_TRIGGERS: Final = {
    "headwater_ddl": "ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE INDEX',"
    " 'ALTER TYPE', 'ALTER DOMAIN', 'ALTER SCHEMA')",
    "headwater_drop": "sql_drop WHEN TAG IN ('ALTER TABLE', 'DROP TABLE', 'DROP INDEX',"
    " 'DROP TYPE', 'DROP DOMAIN', 'DROP SCHEMA', 'DROP OWNED', 'DROP EXTENSION')",
    "headwater_rewrite": "table_rewrite",
}
_ACTIVE: Final = """
SELECT count(*) = cardinality(%(names)s::text[])
  FROM pg_event_trigger WHERE evtname = ANY (%(names)s::text[]) AND evtenabled IN ('O', 'A')
"""


def statements() -> str:
    """Returns the SQL that a superuser may run instead; it may be run again at any time."""
    made = [
        f"DROP EVENT TRIGGER IF EXISTS {name};\n"
        f"CREATE EVENT TRIGGER {name} ON {event}\n"
        "    EXECUTE FUNCTION headwater.note_schema_change();"
        for name, event in _TRIGGERS.items()
    ]
    return "\n".join([_FUNCTIONS.strip(), *made])


def allowed(connection: Connection[Any]) -> bool:
    """Tells whether the role may make event triggers."""
    row = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    return bool((row.fetchone() or (False,))[0])


def active(connection: Connection[Any]) -> bool:
    """Tells whether the source notes every change by itself."""
    row = connection.execute(_ACTIVE, {"names": list(_TRIGGERS)}).fetchone()
    return bool(row and row[0])


def ensure(connection: Connection[Any]) -> list[str]:
    """Makes the source note changes of its tables, if the role may; returns what was changed.

    Where it may not, `history.observe` finds changes by looking.
    """
    if active(connection) or not allowed(connection):
        return []
    with connection.transaction():
        connection.execute(statements().encode())
    return ["changes of tables are noted by the source itself"]


def drop(connection: Connection[Any]) -> bool:
    """Takes the triggers away unless a source of this database is captured.

    Returns:
        Whether they were there, and the role may do it.
    """
    row = connection.execute("SELECT EXISTS (SELECT FROM headwater.captures)").fetchone()
    captured = row is None or row[0]
    if captured or not active(connection) or not allowed(connection):
        return False
    with connection.transaction():
        for name in _TRIGGERS:
            connection.execute(f"DROP EVENT TRIGGER IF EXISTS {name}".encode())
    return True
