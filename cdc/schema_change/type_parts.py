"""What the values of a column's type are made of: labels of enums, and attributes of composites.

A label that is renamed, and an attribute that is added or dropped, changes how stored rows read
without writing one of them. The log has no record of such rows, so the change itself is recorded.
"""

from __future__ import annotations

from typing import Final

FIRST_OWN_OID: Final = 16384
"""Types below this number are Postgres' own (`FirstNormalObjectId`): their parts never change."""

PARTS_OF: Final = """
SELECT used.oid, part.oid AS part
  FROM used JOIN pg_catalog.pg_type AS u ON u.oid = used.oid
 CROSS JOIN LATERAL (
       SELECT u.typelem AS oid WHERE u.typelem <> 0
        UNION ALL SELECT u.typbasetype WHERE u.typbasetype <> 0
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range AS r
                   WHERE u.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT p.atttypid FROM pg_catalog.pg_attribute AS p
                   WHERE p.attrelid = u.typrelid AND u.typrelid <> 0
                     AND p.attnum > 0 AND NOT p.attisdropped) AS part
"""
"""Types that the types `used (oid)` are made of, one level down."""

LABELS_AND_ATTRIBUTES: Final = f"""
WITH RECURSIVE used AS (
    SELECT {{type}} AS oid UNION SELECT below.part FROM ({PARTS_OF}) AS below)
SELECT jsonb_build_object('parts', jsonb_object_agg(part.id, part.reads))
  FROM (SELECT 'label ' || e.oid AS id, e.enumlabel::text AS reads
          FROM used JOIN pg_catalog.pg_enum AS e ON e.enumtypid = used.oid
         UNION ALL
        SELECT 'type ' || p.attrelid, string_agg(p.attnum::text, ' ' ORDER BY p.attnum)
          FROM used JOIN pg_catalog.pg_type AS c USING (oid)
          JOIN pg_catalog.pg_attribute AS p ON p.attrelid = c.typrelid AND c.typrelid <> 0
         WHERE p.attnum > 0 AND NOT p.attisdropped
         GROUP BY p.attrelid) AS part
HAVING count(*) > 0
"""  # noqa: S608  # built from constants only
"""The object `{"parts": {number: text}}` of the type `{type}`; no row if it has no such part."""
