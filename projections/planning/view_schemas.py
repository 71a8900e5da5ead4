"""The columns that each view has and excludes, in the source database: `headwater.view_shapes`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from psycopg.types.json import Jsonb

from cdc.position import VERSION_LSN_BITS
from cdc.postgres import escaped_topics
from cdc.table import Column, ColumnKind, TableName, TableSchema, Treatment
from foundation.advisory_lock import AdvisoryLock
from projections.common.fault import Fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    import psycopg

    from projections.definition.views import Store
    from projections.planning.schema_policy import SchemaOutcome

_READ: Final = """
SELECT view, table_oid, tables, change_id, shape_id, columns, left_to_read, kept_since, read_id,
       paused, updated_at
  FROM headwater.view_shapes WHERE source = %s
"""
_WRITE: Final = """
INSERT INTO headwater.view_shapes AS v (view, source, table_oid, tables, change_id, shape_id,
       columns, left_to_read, kept_since, read_id, paused)
VALUES (%(view)s, %(source)s, %(table_oid)s, %(tables)s, %(change_id)s, %(shape_id)s, %(columns)s,
       %(left_to_read)s, %(kept_since)s, %(read_id)s, %(paused)s)
ON CONFLICT (view) DO UPDATE
   SET source = excluded.source, table_oid = excluded.table_oid, tables = excluded.tables,
       change_id = excluded.change_id, shape_id = excluded.shape_id, columns = excluded.columns,
       left_to_read = excluded.left_to_read, kept_since = excluded.kept_since,
       read_id = excluded.read_id, paused = excluded.paused, updated_at = clock_timestamp()
"""
_PAUSE: Final = """
UPDATE headwater.view_shapes SET paused = %s, updated_at = clock_timestamp()
 WHERE source = %s AND view = %s AND paused IS NULL
"""
_READY: Final = """
SELECT to_regclass('headwater.view_shapes') IS NOT NULL
       AND to_regclass('headwater.view_versions') IS NOT NULL
"""
_MARK: Final = """
SELECT (SELECT max(id) FROM headwater.schema_changes),
       (SELECT md5(jsonb_agg(jsonb_build_array(view, updated_at) ORDER BY view)::text)
          FROM headwater.view_shapes AS v
         WHERE source = %s AND NOT EXISTS (  -- nothing to the job, which does not keep it
               SELECT FROM headwater.view_versions AS w
                WHERE w.source = v.source AND w.place = v.view
                  AND (w.state IN ('building', 'dropped')
                       OR w.state = 'joining' AND w.place <> ALL (%s))))
"""
_OUTCOME: Final = """
INSERT INTO headwater.schema_outcomes (change_id, view, outcome) VALUES (%s, %s, %s)
ON CONFLICT (change_id, view) DO UPDATE SET outcome = excluded.outcome, decided_at = now()
"""
# Rows that the read has not found must still be removed. An abandoned read is not waited for
# silently: its own state reports the reason.
_WAITING: Final = """
SELECT v.tables -> -1 ->> 0, v.tables -> -1 ->> 1
  FROM headwater.view_shapes v JOIN headwater.snapshots s ON s.id = v.read_id
 WHERE v.source = %(source)s AND v.view = ANY (%(views)s)
   AND (s.state <> 'done' OR NOT EXISTS (
        SELECT FROM headwater.sweeps w
         WHERE w.view = v.view AND w.store = %(store)s
           AND w.below_version >= (s.epoch::bigint << %(lsn_bits)s::int)
                                  + (s.read_lsn - '0/0'::pg_lsn)::bigint))
"""
_EPOCH: Final = """
SELECT coalesce((SELECT epoch FROM headwater.captures WHERE source = %(source)s),
                (SELECT max(epoch) FROM headwater.snapshots WHERE source = %(source)s), 1)
"""
_LOCK: Final = AdvisoryLock.named("headwater.view_shapes")


@dataclass(frozen=True, slots=True)
class ViewShape:
    """The columns of one view, and how they follow from its table.

    Attributes:
        view: Its name.
        table_oid: Its table.
        tables: Names of the table over time, the newest last.
        change_id: The last schema change of the table that was decided on.
        shape_id: The change since which the table has the view's columns.
        schema: The table with its columns of that time, including excluded ones.
        left_to_read: Records with lower versions are ignored: the requested read replaces them.
        kept_since: Rows with lower versions cannot complete a change that omits unchanged values.
        read_id: Read of the whole table that the view waits for; None if it waits for none.
        paused: Why it is paused; None if it is not.
        updated_at: Time of the last decision; None before it is stored.
        expected: The expectations that decided which rows it has, as `Expectation` prints them.
        left_out: Numbers of the excluded columns, by the name in the list; several if one took the
            name of another.
    """

    view: str
    table_oid: int
    tables: tuple[TableName, ...]
    change_id: int
    shape_id: int
    schema: TableSchema
    left_to_read: int = 0
    kept_since: int = 0
    read_id: int | None = None
    paused: Fault | None = None
    updated_at: datetime | None = None
    expected: tuple[str, ...] = ()
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def out(self) -> frozenset[int]:
        """Returns the numbers of all excluded columns."""
        return frozenset().union(*self.left_out.values())


def ready(connection: psycopg.Connection[Any]) -> bool:
    """Returns whether the table exists: before the first capture it does not."""
    row = connection.execute(_READY).fetchone()
    return bool(row and row[0])


def read(connection: psycopg.Connection[Any], source: str) -> dict[str, ViewShape]:
    """Reads the shapes of all views of a source."""
    return {row[0]: _shape(*row) for row in connection.execute(_READ, (source,)).fetchall()}


def write(connection: psycopg.Connection[Any], source: str, shape: ViewShape) -> None:
    """Stores the shape of a view."""
    paused = None if shape.paused is None else Jsonb(asdict(shape.paused))
    values = {
        "view": shape.view,
        "source": source,
        "table_oid": shape.table_oid,
        "tables": Jsonb([[table.schema, table.name] for table in shape.tables]),
        "change_id": shape.change_id,
        "shape_id": shape.shape_id,
        "columns": Jsonb(
            {
                **_to_json(shape.schema),
                "expected": shape.expected,
                "left_out": dict(shape.left_out),
            }
        ),
        "left_to_read": shape.left_to_read,
        "kept_since": shape.kept_since,
        "read_id": shape.read_id,
        "paused": paused,
    }
    connection.execute(_WRITE, values)


def pause(connection: psycopg.Connection[Any], source: str, view: str, fault: Fault) -> None:
    """Pauses a view, unless it is paused."""
    connection.execute(_PAUSE, (Jsonb(asdict(fault)), source, view))


def note(
    connection: psycopg.Connection[Any], view: str, changes: Iterable[int], outcome: SchemaOutcome
) -> None:
    """Records the outcome of schema changes for a view."""
    with connection.cursor() as cursor:
        cursor.executemany(_OUTCOME, [(change, view, str(outcome)) for change in changes])


def outcomes(connection: psycopg.Connection[Any]) -> dict[int, dict[str, str]]:
    """Returns the outcome of each schema change, by view."""
    found: dict[int, dict[str, str]] = {}
    query = "SELECT change_id, view, outcome FROM headwater.schema_outcomes ORDER BY 1, 2"
    for change, view, outcome in connection.execute(query).fetchall():
        found.setdefault(change, {})[view] = outcome
    return found


def mark(
    connection: psycopg.Connection[Any], source: str, kept: Iterable[str] = ()
) -> tuple[object, ...]:
    """Returns a value that changes as soon as a table changes or a decision is made.

    Args:
        connection: To the source.
        source: Its name.
        kept: Physical names of versions that count although they are joining.
    """
    row = connection.execute(_MARK, (source, list(kept))).fetchone()
    return tuple(row) if row else ()


def waiting_topics(
    connection: psycopg.Connection[Any], source: str, store: Store, views: Iterable[str]
) -> frozenset[str]:
    """Returns the topics of tables that must be read again for views, and are not in them yet."""
    wanted = {
        "source": source,
        "store": str(store),
        "views": list(views),
        "lsn_bits": VERSION_LSN_BITS,
    }
    rows = connection.execute(_WAITING, wanted).fetchall()
    names = escaped_topics.names(connection, source)
    return frozenset(names.of(TableName(schema, name)) for schema, name in rows)


def epoch(connection: psycopg.Connection[Any], source: str) -> int:
    """Returns the incarnation of a source that is captured."""
    row = connection.execute(_EPOCH, {"source": source}).fetchone()
    return int(row[0]) if row else 1


def lock(connection: psycopg.Connection[Any], source: str) -> None:
    """Takes the lock for decisions on views of a source; held by the session."""
    connection.execute(_LOCK.in_session, (source,))


def unlock(connection: psycopg.Connection[Any], source: str) -> None:
    """Releases that lock."""
    connection.execute(_LOCK.free, (source,))


def _shape(view: str, oid: int, tables: list[list[str]], *rest: Any) -> ViewShape:
    names = tuple(TableName(schema, name) for schema, name in tables)
    change, shape, columns, left, kept, read_id, paused, at = rest
    return ViewShape(
        view,
        oid,
        names,
        change,
        shape,
        _of_json(names[-1], columns),
        left,
        kept,
        read_id,
        None if paused is None else Fault(**paused),
        at,
        tuple(columns.get("expected", ())),
        {name: tuple(numbers) for name, numbers in columns.get("left_out", {}).items()},
    )


def _to_json(schema: TableSchema) -> dict[str, Any]:
    return {"columns": [asdict(column) for column in schema.columns], "key": list(schema.key)}


def _of_json(table: TableName, fields: Mapping[str, Any]) -> TableSchema:
    columns = tuple(_column(**column) for column in fields["columns"])
    return TableSchema(table, columns, tuple(fields["key"]))


def _column(*, kind: str, treatment: dict[str, Any] | None = None, **rest: Any) -> Column:
    treated = None if treatment is None else Treatment(**treatment)
    return Column(kind=ColumnKind(kind), treatment=treated, **rest)
