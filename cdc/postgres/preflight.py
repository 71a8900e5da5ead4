"""Checks the requirements on the source before it is captured; read-only.

Postgres and Debezium report most of these problems too, but late, one at a time, and without naming
the repair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from cdc.capture import OWN_TABLES
from cdc.postgres import captures, catalog, own_schema, provider, table_check, value_check
from cdc.postgres import publication as publications
from cdc.postgres import slot as slots
from cdc.postgres.check import Check, CheckState
from cdc.table import TableName
from foundation.suggestion import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from psycopg import Connection

_VERSION_MIN: Final = 14
_EVENT_STORE: Final = "eventstore"  # created by a migration, not by a user
_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a composite type",
    "i": "an index",
}

_TABLES: Final = """
SELECT n.nspname, c.relname,
       c.relkind, c.relpersistence, has_schema_privilege(n.oid, 'USAGE') AS usage,
       (SELECT coalesce(array_agg(a.attname::text ORDER BY a.attnum), '{}')
          FROM pg_attribute a
         WHERE a.attrelid = c.oid AND NOT a.attisdropped
           AND (a.attnum > 0 OR a.attname IN ('ctid', 'tableoid'))
           AND NOT has_column_privilege(c.oid, a.attnum, 'SELECT')) AS hidden,
       EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid)
           AND row_security_active(c.oid) AS filtered
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""

_SLOTS: Final = """
SELECT count(*) FILTER (WHERE slot_name <> %s), current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_stat_replication), current_setting('max_wal_senders')::int
  FROM pg_replication_slots
"""

_SILENCE: Final = """
SELECT extract(epoch FROM clock_timestamp() - beat_at)::int,
       EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s AND active)
  FROM headwater.heartbeat WHERE id = 1
"""
_SILENCE_MAX_S: Final = 60

_HEARTBEAT_GRANTS: Final = """
SELECT has_schema_privilege(n.oid, 'USAGE'),
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
           AND has_table_privilege(c.oid, 'UPDATE')
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'headwater' AND c.relname = 'heartbeat'
"""


def checks(  # noqa: PLR0913  # what it looks at
    connection: Connection[Any],
    *,
    source: str,
    tables: Sequence[TableName],
    slot: str,
    publication: str,
    reader: Connection[Any] | None = None,
    columns: Mapping[TableName, Sequence[str]] | None = None,
    insert_only: Collection[TableName] = (),
) -> Iterator[Check]:
    """Checks all requirements of capture on the source.

    Args:
        connection: To the source database.
        source: Prefix of the topics.
        tables: Tables to capture.
        slot: Name of the replication slot.
        publication: Name of the publication.
        reader: A session with the capture role, if that is another role.
        columns: Tables with only these columns read.
        insert_only: Tables for which Postgres may refuse UPDATE and DELETE.
    """
    reader = reader or connection
    yield _version(connection)
    yield value_check.encoding(connection)
    yield _primary(connection)
    yield _wal_level(connection)
    yield _replication_role(reader)
    yield _slots(connection, slot)
    yield from _slot(connection, source, slot)
    yield _publication(connection, publication, tables)
    yield _heartbeat(connection, slot)
    yield from _heartbeat_grants(reader)
    yield from value_check.names(connection, tables, columns)
    yield from _tables(reader, tables, columns or {})
    published = _published(connection, publication, tables)
    yield from table_check.checks(connection, tables, insert_only, published)


def _row(connection: Connection[Any], query: str, arguments: tuple[Any, ...] = ()) -> Any:
    return connection.execute(query.encode(), arguments).fetchone()


def _setting(connection: Connection[Any], name: str) -> str:
    return str(_row(connection, "SELECT current_setting(%s)", (name,))[0])


def _version(connection: Connection[Any]) -> Check:
    major = connection.info.server_version // 10_000
    if major >= _VERSION_MIN:
        return Check("version", CheckState.OK, f"Postgres {major}")
    hint = f"upgrade to Postgres {_VERSION_MIN} or later"
    return Check("version", CheckState.FAIL, f"Postgres {major} is too old", hint=hint)


def _primary(connection: Connection[Any]) -> Check:
    if _row(connection, "SELECT pg_is_in_recovery()")[0]:
        hint = "give the address of the primary: heartbeat and publication are written there"
        return Check("primary", CheckState.FAIL, "this server is a standby", hint=hint)
    return Check("primary", CheckState.OK, "accepts writes")


def _wal_level(connection: Connection[Any]) -> Check:
    level = _setting(connection, "wal_level")
    if level == "logical":
        return Check("wal_level", CheckState.OK, level)
    managed = provider.detect(connection)
    hint = "ALTER SYSTEM SET wal_level = logical;  and restart the server"
    hint = hint if managed is None else managed.logical
    return Check("wal_level", CheckState.FAIL, f"is {level}, must be logical", hint=hint)


def _replication_role(connection: Connection[Any]) -> Check:
    role, replication, superuser = _row(
        connection,
        "SELECT rolname, rolreplication, rolsuper FROM pg_roles WHERE rolname = current_user",
    )
    if replication or superuser:
        return Check("role", CheckState.OK, f"{role} may replicate")
    managed = provider.detect(connection)
    if managed is provider.RDS and provider.replicates_by_membership(connection):
        return Check("role", CheckState.OK, f"{role} may replicate, by rds_replication")
    quoted = sql.Identifier(role).as_string(connection)
    hint = f"ALTER ROLE {quoted} REPLICATION;"
    hint = hint if managed is None else managed.replication.format(quoted)
    return Check("role", CheckState.FAIL, f"{role} lacks REPLICATION", hint=hint)


def _slots(connection: Connection[Any], slot: str) -> Check:
    others, slots_max, senders, senders_max = _row(connection, _SLOTS, (slot,))
    detail = f"{others} of {slots_max} slots, {senders} of {senders_max} senders in use"
    if others < slots_max and senders < senders_max:
        return Check("slots", CheckState.OK, detail)
    wanted = {"max_replication_slots": slots_max + 5, "max_wal_senders": senders_max + 5}
    managed = provider.detect(connection)
    hint = "  ".join(f"ALTER SYSTEM SET {name} = {value};" for name, value in wanted.items())
    hint = f"{hint}  and restart the server" if managed is None else managed.raises(**wanted)
    return Check("slots", CheckState.FAIL, "no replication slot or sender is free", detail, hint)


def _slot(connection: Connection[Any], source: str, slot: str) -> Iterator[Check]:
    found = _row(
        connection,
        "SELECT database, plugin, active_pid, wal_status, current_database()"
        "  FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    )
    if found is None:
        yield Check("slot", CheckState.OK, f"{slot} will be made")
        return
    database, plugin, active_pid, wal_status, here = found
    hint = f"give this source another name, or drop it: {slots.dropping(slot)}"
    known = captures.find(connection, source) is not None
    if database != here or plugin != "pgoutput":
        message = f"{slot} belongs to database {database}, plugin {plugin}"
        yield Check("slot", CheckState.FAIL, message, hint=hint)
    elif wal_status == "lost":
        detail = "its changes are gone: every table must be read again"
        if known:
            hint = "headwater source repair --yes"
        yield Check("slot", CheckState.FAIL, f"{slot} has lost its log", detail, hint)
    elif not known and not captures.intended(connection, source, slot):
        message = f"{slot} was not made by Headwater"
        detail = "no recorded capture of this database uses it"
        yield Check("slot", CheckState.FAIL, message, detail, hint)
    else:
        used = f"in use by process {active_pid}" if active_pid else "not in use"
        yield Check("slot", CheckState.OK, f"{slot} is {used}")


def _publication(connection: Connection[Any], name: str, tables: Sequence[TableName]) -> Check:
    found = publications.find(connection, name)
    if found is None:
        return Check("publication", CheckState.OK, f"{name} will be made")
    drift = found.drift(tables)
    if (
        not found.generated
        and not found.ours
        and catalog.published_generated_columns(connection, tables)
    ):
        quoted = sql.Identifier(name).as_string(connection)
        hint = f"ALTER PUBLICATION {quoted} SET (publish_generated_columns = stored);"
        message = f"{name} leaves out stored generated columns"
        return Check("publication", CheckState.FAIL, message, hint=hint)
    if drift or not found.complete:
        quoted = sql.Identifier(name).as_string(connection)
        detail = "; ".join(drift) or "it leaves out some operations"
        hint = f"DROP PUBLICATION {quoted};  and headwater up recreates it"
        return Check("publication", CheckState.FAIL, f"{name} loses changes", detail, hint)
    if not (found.ours or found.all_tables) and (lacking := {*tables, *OWN_TABLES} - found.tables):
        hint = publications.by_hand(connection, name, lacking)
        message = f"{name} lacks tables, and Headwater did not make it with this role"
        return Check("publication", CheckState.FAIL, message, _listed(lacking), hint)
    missing = set() if found.all_tables else set(tables) - found.tables
    if missing:
        message = f"{name} lacks tables, which will be added and read"
        return Check("publication", CheckState.OK, message, _listed(missing))
    return Check("publication", CheckState.OK, f"{name} publishes {len(found.tables)} tables")


def _listed(tables: Collection[TableName]) -> str:
    return ", ".join(sorted(map(str, tables)))


def _published(
    connection: Connection[Any], name: str, tables: Sequence[TableName]
) -> Collection[TableName]:
    """Returns the tables whose UPDATE and DELETE Postgres already refuses, if any is refused."""
    found = publications.find(connection, name)
    if found is None:
        return ()
    return tables if found.all_tables else found.tables


def _heartbeat(connection: Connection[Any], slot: str) -> Check:
    if not own_schema.exists(connection):
        return Check("heartbeat", CheckState.OK, "its table will be made")
    silent_s, active = _row(connection, _SILENCE, (slot,))
    if active and silent_s > _SILENCE_MAX_S:
        detail = "an idle database would hold back its log, and positions stand still"
        hint = "headwater source status says whether the connector runs"
        return Check("heartbeat", CheckState.WARN, f"silent for {silent_s} s", detail, hint)
    return Check("heartbeat", CheckState.OK, f"last written {silent_s} s ago")


def _tables(
    connection: Connection[Any],
    tables: Sequence[TableName],
    columns: Mapping[TableName, Sequence[str]],
) -> Iterator[Check]:
    """Checks all tables in one query: one per table would take minutes over a slow connection."""
    names = ([table.schema for table in tables], [table.name for table in tables])
    rows = connection.execute(_TABLES.encode(), names).fetchall()
    found = {TableName(schema, name): about for schema, name, *about in rows}
    there = [] if found.keys() >= set(tables) else catalog.list_tables(connection)
    for table in tables:
        if table in found:
            yield from _table(connection, table, found[table], columns.get(table))
        elif table.schema == _EVENT_STORE:
            name = f"table {table}"
            yield Check(name, CheckState.FAIL, "does not exist", hint="headwater db upgrade")
        else:
            hint = did_you_mean(str(table), map(str, there), "check the name and its schema")
            yield Check(f"table {table}", CheckState.FAIL, "does not exist", hint=hint)


def _table(
    connection: Connection[Any],
    table: TableName,
    found: Sequence[Any],
    columns: Sequence[str] | None,
) -> Iterator[Check]:
    name = f"table {table}"
    kind, persistence, usage, hidden, filtered = found
    if kind not in "rp" or persistence != "p":
        what = _KINDS.get(kind, "an unlogged table" if persistence == "u" else "a temporary table")
        hint = "only ordinary, logged tables leave a trace in the log"
        yield Check(name, CheckState.FAIL, f"is {what}", hint=hint)
        return
    if columns is not None:
        hidden = [column for column in columns if column in hidden]
    yield from _grants(connection, table, usage=usage, hidden=hidden, columns=columns)
    if filtered:
        role = sql.Identifier(connection.info.user).as_string(connection)
        hint = f"ALTER ROLE {role} BYPASSRLS;  or exempt it from the table's policies"
        yield Check(name, CheckState.FAIL, "row security would hide rows from capture", hint=hint)


def _grants(
    connection: Connection[Any],
    table: TableName,
    *,
    usage: bool,
    hidden: Sequence[str],
    columns: Sequence[str] | None,
) -> Iterator[Check]:
    role = sql.Identifier(connection.info.user).as_string(connection)
    schema = sql.Identifier(table.schema).as_string(connection)
    quoted = sql.Identifier(table.schema, table.name).as_string(connection)
    missing = [] if usage else [f"GRANT USAGE ON SCHEMA {schema} TO {role};"]
    if hidden:
        wanted = sql.SQL(", ").join(map(sql.Identifier, columns or ())).as_string(connection)
        what = f"SELECT ({wanted})" if columns is not None else "SELECT"
        missing.append(f"GRANT {what} ON {quoted} TO {role};")
    if missing:
        message = f"role {connection.info.user} may not read it"
        yield Check(f"table {table}", CheckState.FAIL, message, hint=" ".join(missing))


def _heartbeat_grants(connection: Connection[Any]) -> Iterator[Check]:
    """Checks the privileges on the heartbeat, which the connector writes.

    The creator of a missing schema will own it.
    """
    row = _row(connection, _HEARTBEAT_GRANTS)
    if row is None:
        return
    usage, writable = row
    role = sql.Identifier(connection.info.user).as_string(connection)
    missing = [] if usage else [f"GRANT USAGE ON SCHEMA headwater TO {role};"]
    if not writable:
        missing.append(f"GRANT SELECT, INSERT, UPDATE ON headwater.heartbeat TO {role};")
    if missing:
        message = f"role {connection.info.user} may not write it"
        yield Check("heartbeat", CheckState.FAIL, message, hint=" ".join(missing))
