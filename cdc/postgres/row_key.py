"""SQL conditions: which columns of a table are captured, and which of them identify a row.

The catalog and the function that records schema changes inside the source use the same text.
"""

from __future__ import annotations

from typing import Final

GENERATED_PUBLISHED_SINCE: Final = 180_000
"""First server version whose publications can publish stored generated columns; virtual ones are
never in the log."""

CAPTURED: Final = (
    "(a.attgenerated = '' OR a.attgenerated = 's' AND"
    f" current_setting('server_version_num')::int >= {GENERATED_PUBLISHED_SINCE})"
)
"""Whether the log has the column `a`, a row of `pg_attribute`."""

KEY: Final = f"""
SELECT (x.indkey::int2[])[0:x.indnkeyatts - 1] AS key, x.indisprimary AS is_primary
  FROM pg_index x
 WHERE x.indrelid = c.oid AND x.indisvalid AND x.indisunique AND x.indimmediate
   AND x.indpred IS NULL AND x.indexprs IS NULL
   AND NOT EXISTS (
       SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum = ANY ((x.indkey::int2[])[0:x.indnkeyatts - 1])
          AND NOT (a.attnotnull AND {CAPTURED}))
   AND CASE WHEN c.relreplident = 'i' THEN x.indisreplident
            WHEN c.relreplident = 'n' THEN c.relkind = 'p'
            ELSE true END
 ORDER BY x.indisreplident DESC, x.indisprimary DESC, x.indnkeyatts, x.indexrelid
 LIMIT 1
"""  # noqa: S608  # built from constants only
"""Numbers of the columns that identify a row of the table `c`, a row of `pg_class`; no row without
a key. An index with NULLs, with a condition, or on expressions identifies no row, and neither does
a deferrable constraint, which two rows may violate until the commit. Included columns of an index
are not part of its key. The replica identity of a partitioned table has no effect, because the
server uses that of its partitions: NOTHING is ignored there.
"""
