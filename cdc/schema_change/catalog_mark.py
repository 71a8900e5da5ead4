"""A cheap fingerprint of the catalogs, which differs if the shape of a table may have changed.

Comparing all shapes takes a tenth of a second for 400 tables, and without event triggers a job
compares them several times a second. The fingerprint is therefore compared first. It covers the
catalog rows that determine a shape: each has the number of the transaction that wrote it, and DDL
writes new rows. Values that Postgres updates in place, such as row counts, are in no shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdc.schema_change.type_parts import PARTS_OF

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

_WRITTEN_BY: Final = "row(count(*), sum(hashint8extended(c.xmin::text::bigint, 0)))::text"
_MARK: Final = f"""
WITH RECURSIVE relations AS (  -- without a lock, which DDL under way would hold up
    SELECT unnest(%(oids)s::oid[]) AS oid
     UNION
    SELECT i.inhrelid FROM relations JOIN pg_catalog.pg_inherits AS i ON i.inhparent = oid),
columns AS MATERIALIZED (
    SELECT a.xmin, a.atttypid FROM relations JOIN pg_catalog.pg_attribute AS a ON a.attrelid = oid),
used AS (
    SELECT atttypid AS oid FROM columns
     UNION SELECT below.part FROM ({PARTS_OF}) AS below)
SELECT (SELECT {_WRITTEN_BY} FROM columns AS c),
       (SELECT {_WRITTEN_BY} FROM relations JOIN pg_catalog.pg_class AS c USING (oid)),
       (SELECT {_WRITTEN_BY} FROM relations AS r
          JOIN pg_catalog.pg_index AS c ON c.indrelid = r.oid),
       (SELECT {_WRITTEN_BY} FROM used JOIN pg_catalog.pg_type AS c USING (oid)),
       (SELECT {_WRITTEN_BY} FROM used JOIN pg_catalog.pg_enum AS c ON c.enumtypid = used.oid),
       (SELECT {_WRITTEN_BY} FROM used JOIN pg_catalog.pg_type AS t USING (oid)
          JOIN pg_catalog.pg_attribute AS c ON c.attrelid = t.typrelid AND t.typrelid <> 0),
       (SELECT {_WRITTEN_BY} FROM pg_catalog.pg_inherits AS c),
       (SELECT {_WRITTEN_BY} FROM pg_catalog.pg_namespace AS c
         WHERE c.nspname !~ '^pg_(toast_)?temp_')
"""  # noqa: S608  # built from constants only
# ALTER TABLE of a partition locks only it; of a partitioned table, it locks all its partitions.
_BEING_CHANGED: Final = """
WITH locked AS (
    SELECT l.relation FROM pg_catalog.pg_locks AS l
     WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' AND l.granted
       AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
       AND l.pid <> pg_backend_pid())
SELECT given.oid FROM unnest(%s::bigint[]) AS given (oid)
 WHERE given.oid IN (SELECT relation::bigint FROM locked)
    OR given.oid IN (SELECT a.relid::oid::bigint
                       FROM locked, pg_catalog.pg_partition_ancestors(locked.relation) AS a)
"""


def read(connection: Connection[Any], oids: Sequence[int]) -> tuple[object, ...]:
    """Returns a value that differs once DDL on one of the tables has committed.

    Args:
        connection: To the source, in autocommit.
        oids: The tables' numbers.
    """
    row = connection.execute(_MARK.encode(), {"oids": list(oids)}).fetchone()
    return (tuple(oids), *(row or ()))


def being_changed(connection: Connection[Any], oids: Sequence[int]) -> frozenset[int]:
    """Returns the tables that the DDL of another session blocks for readers now.

    DDL that committed before this call is visible to every later query, and DDL that begins after
    it has later log positions.

    Args:
        connection: To the source, in autocommit.
        oids: The tables' numbers.
    """
    rows = connection.execute(_BEING_CHANGED, (list(oids),)).fetchall()
    return frozenset(oid for (oid,) in rows)
