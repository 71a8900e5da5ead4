"""The schema `headwater` in the source: heartbeat, captures, snapshots, how far each view has come.

It is made by statements that may be run again at any time, also by an administrator beforehand: a
role that may not create it finds it there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from psycopg.errors import InsufficientPrivilege

from cdc.postgres.errors import SchemaOwnerError

if TYPE_CHECKING:
    from psycopg import Connection

BEAT: Final = (
    "INSERT INTO headwater.heartbeat AS h (id, beat_at, number) VALUES (1, clock_timestamp(), 1) "
    "ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, number = h.number + 1"
)
"""What the connector runs at every heartbeat: a number missing in the topic is a missing change."""

TABLES: Final = (
    "heartbeat",
    "view_positions",
    "captures",
    "snapshots",
    "schema_changes",
    "view_shapes",
    "schema_outcomes",
    "quarantine",
    "sweeps",
    "view_versions",
    "view_verifications",
    "alert_episodes",
    "alert_messages",
)

SQL: Final = """
CREATE SCHEMA IF NOT EXISTS headwater;
CREATE TABLE IF NOT EXISTS headwater.heartbeat (
    id int PRIMARY KEY,
    beat_at timestamptz NOT NULL
);
ALTER TABLE headwater.heartbeat ADD COLUMN IF NOT EXISTS number bigint NOT NULL DEFAULT 0;
INSERT INTO headwater.heartbeat (id, beat_at) VALUES (1, clock_timestamp())
    ON CONFLICT (id) DO NOTHING;
CREATE TABLE IF NOT EXISTS headwater.view_positions (
    view text,
    store text,
    source text NOT NULL,
    applied_through pg_lsn NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (view, store)
);
-- One row for each source: which incarnation of it is captured, and from which slot.
CREATE TABLE IF NOT EXISTS headwater.captures (
    source text PRIMARY KEY,
    epoch int NOT NULL,
    slot text NOT NULL,
    slot_made_at pg_lsn NOT NULL,
    system_id bigint NOT NULL,
    timeline int NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
ALTER TABLE headwater.captures
    -- where the slot stood when it was looked at last; NULL once a connector has streamed from it
    ADD COLUMN IF NOT EXISTS cleared_lsn pg_lsn,
    ADD COLUMN IF NOT EXISTS captured_lsn pg_lsn,   -- Kafka has everything up to here, and more
    ADD COLUMN IF NOT EXISTS topics jsonb,          -- {"topic": {"id": …, "ends": [next offset]}}
    ADD COLUMN IF NOT EXISTS beat_number bigint,    -- newest heartbeat that was compared
    ADD COLUMN IF NOT EXISTS beat_lsn pg_lsn,
    ADD COLUMN IF NOT EXISTS beat_offset bigint,    -- offset after it
    ADD COLUMN IF NOT EXISTS lost text,             -- code of what was found: changes are missing
    ADD COLUMN IF NOT EXISTS lost_detail text,
    ADD COLUMN IF NOT EXISTS lost_at timestamptz,
    ADD COLUMN IF NOT EXISTS repairing int,         -- epoch that a repair under way makes
    ADD COLUMN IF NOT EXISTS wal_lsn pg_lsn,        -- where the log ended, a minute ago or so
    ADD COLUMN IF NOT EXISTS wal_at timestamptz;
-- Every task of a connector asks this before it streams: Connect starts tasks by itself, and may
-- not do so from a slot that nobody has looked at since it was read from last.
CREATE OR REPLACE FUNCTION headwater.may_stream(capture text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $may_stream$
BEGIN
    IF current_setting('application_name') <> 'Debezium General' THEN
        RETURN true;  -- a validation, which streams nothing
    END IF;
    PERFORM FROM headwater.captures c
      JOIN pg_replication_slots s ON s.slot_name = c.slot
      LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
     WHERE c.source = capture AND c.lost IS NULL
       AND (r.application_name = 'Debezium Streaming'
            OR s.active_pid IS NULL AND s.confirmed_flush_lsn = c.cleared_lsn);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'capture of % waits until its slot has been looked at', capture
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'headwater up looks at it, and watches over it from then on';
    END IF;
    RETURN true;
END
$may_stream$;
-- Reads of tables, whole or in part: asked for, under way, done. The newest is the one that counts.
CREATE TABLE IF NOT EXISTS headwater.snapshots (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    epoch int NOT NULL,
    table_schema text NOT NULL,
    table_name text NOT NULL,
    predicate text,          -- SQL condition of a read in part; NULL reads the whole table
    keys jsonb,              -- keys of a read of those, as lists of texts
    state text NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'reading', 'done', 'failed', 'cancelled')),
    read_lsn pg_lsn,         -- every change that the read does not see has a later position
    rows_expected bigint,
    rows_read bigint NOT NULL DEFAULT 0,
    progress jsonb,          -- what a reader needs to go on after a crash
    end_offsets jsonb,       -- {"partition": next offset} of its topic once all rows are there
    failure text,            -- why it failed, or what it waits for
    asked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    begun_at timestamptz,
    ended_at timestamptz,
    resumed_at timestamptz,  -- when the reader that is at it took it over
    rows_resumed bigint NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS snapshots_by_table
    ON headwater.snapshots (source, epoch, table_schema, table_name, id);
-- What each captured table looks like from a position of the log on; see cdc.schema_change.
CREATE TABLE IF NOT EXISTS headwater.schema_changes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    table_oid bigint NOT NULL,
    lsn pg_lsn NOT NULL,     -- changes of rows from here on have this shape
    seen_after pg_lsn,       -- only found by looking: it lies anywhere between this and lsn
    command text NOT NULL,
    rewritten boolean,       -- whether rows got values that are not in the log; NULL: unknown
    shape jsonb,             -- NULL: the table is gone
    noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS schema_changes_by_table ON headwater.schema_changes (table_oid, id);
-- Which columns each view has, through which schema change it has followed its table, and why it
-- is paused if it is.
CREATE TABLE IF NOT EXISTS headwater.view_shapes (
    view text PRIMARY KEY,
    source text NOT NULL,
    table_oid bigint NOT NULL,
    tables jsonb NOT NULL,      -- names that the table had, [[schema, name]], the newest last
    change_id bigint NOT NULL,  -- newest schema change of the table that was decided on
    shape_id bigint NOT NULL,   -- the one since which the table has the view's columns
    columns jsonb NOT NULL,     -- the table's, and which of them the view leaves out
    left_to_read bigint NOT NULL DEFAULT 0,  -- records of older versions are left to that read
    kept_since bigint NOT NULL DEFAULT 0,    -- rows of older versions complete no change
    read_id bigint,             -- read of the whole table that the view waits for
    paused jsonb,               -- why it is paused; NULL: it is not
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- What became of each schema change in each view.
CREATE TABLE IF NOT EXISTS headwater.schema_outcomes (
    change_id bigint,
    view text,
    outcome text NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (change_id, view)
);
-- Records that could not be read or applied, with what waits behind them; see
-- projections.changes.quarantine.
CREATE TABLE IF NOT EXISTS headwater.quarantine (
    view text,
    store text,
    topic text,
    partition int,
    record_offset bigint,
    source text NOT NULL,
    key text NOT NULL,       -- changes of one key wait for each other
    state text NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'retry', 'dropped', 'superseded')),
    version bigint,          -- place in the log; NULL if it cannot be read
    code text NOT NULL,      -- why it waits: of whichever error
    message text NOT NULL,
    detail text,
    hint text,
    attempts int NOT NULL,   -- 0 of what only waits behind another
    seen_lsn pg_lsn NOT NULL DEFAULT pg_current_wal_insert_lsn(),  -- its own position is before it
    first_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    tried_at timestamptz,
    settled_at timestamptz,  -- when it was dropped or superseded
    read_asked_at timestamptz,  -- when a read of its row was asked for
    record_key bytea,        -- the record itself, until it is settled
    record_value bytea,
    epoch text,
    old_key bytea,
    digest bytea NOT NULL,
    PRIMARY KEY (view, store, topic, partition, record_offset)
);
CREATE INDEX IF NOT EXISTS quarantine_by_key ON headwater.quarantine (source, store, view, key);
CREATE INDEX IF NOT EXISTS quarantine_due ON headwater.quarantine (source, store)
    WHERE state = 'retry';
-- Which rows each view has got rid of since they were not found by a read of the whole table.
CREATE TABLE IF NOT EXISTS headwater.sweeps (
    view text,
    store text,
    below_version bigint,    -- of the read: rows of older versions were gone by then
    removed bigint NOT NULL,
    swept_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (view, store, below_version)
);
-- Versions of views: which definition each was made for, and which one readers see; see
-- projections.versions.registry.
CREATE TABLE IF NOT EXISTS headwater.view_versions (
    source text,
    view text,
    version int,
    place text NOT NULL,     -- under which it is kept in every store; never used again
    state text NOT NULL
        CHECK (state IN ('building', 'joining', 'held', 'current', 'former', 'dropped')),
    definition jsonb NOT NULL,
    reasons text[] NOT NULL, -- what of the definition differs from the version before
    bounds jsonb,            -- what of the log it was filled with; NULL: all of it
    replayed jsonb,          -- how far it has been filled, and what a killed one goes on with
    fault jsonb,             -- why it cannot go on; NULL: it can
    switching boolean NOT NULL DEFAULT false,  -- readers are being moved to it
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (source, view, version),
    UNIQUE (source, place)
);
CREATE UNIQUE INDEX IF NOT EXISTS view_versions_current
    ON headwater.view_versions (source, view) WHERE state = 'current';
-- What each view was found to be when it was compared with its source last.
CREATE TABLE IF NOT EXISTS headwater.view_verifications (
    view text,
    store text,
    source text NOT NULL,
    verified_through pg_lsn,    -- NULL: it was never found equal to its source
    verified_at timestamptz,
    looked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    rows bigint NOT NULL,
    missing bigint NOT NULL,
    extra bigint NOT NULL,
    different bigint NOT NULL,
    quarantined bigint NOT NULL,
    moving bigint NOT NULL,     -- keys that changed whenever they were looked at
    PRIMARY KEY (view, store)
);
-- Rows that meet an alert's condition, or have until a moment ago: `projections.alerting`.
CREATE TABLE IF NOT EXISTS headwater.alert_episodes (
    source text,
    alert text,
    key text,
    number bigint GENERATED ALWAYS AS IDENTITY,
    columns jsonb NOT NULL,     -- the key by column
    state text NOT NULL CHECK (state IN ('pending', 'open', 'ending')),
    since timestamptz NOT NULL,
    ended timestamptz,
    PRIMARY KEY (source, alert, key)
);
ALTER TABLE headwater.alert_episodes
    ADD COLUMN IF NOT EXISTS until timestamptz;  -- when it is recent no more; NULL for never
-- What somebody is still to be told; it goes when they have taken it.
CREATE TABLE IF NOT EXISTS headwater.alert_messages (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    alert text NOT NULL,
    key text NOT NULL,
    channel text NOT NULL,
    id text NOT NULL,           -- the same whenever it is sent again
    body bytea NOT NULL,
    attempts int NOT NULL DEFAULT 0,
    code text,                  -- why it was not taken last time
    next_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (source, channel, id)
);
"""
"""What makes the schema; it may be run again at any time."""

_EXISTS: Final = """
SELECT bool_and(to_regclass('headwater.' || name) IS NOT NULL)
       AND to_regprocedure('headwater.may_stream(text)') IS NOT NULL
  FROM unnest(%s::text[]) AS name
"""
_CURRENT: Final = """
SELECT EXISTS (SELECT FROM pg_attribute
                WHERE attrelid = to_regclass('headwater.alert_episodes') AND attname = 'until'
                  AND NOT attisdropped)
"""
"""Whether there is the newest of the columns that were added to tables."""

# All that is ours was made in one transaction with the heartbeat, which has kept these columns.
_ANOTHERS: Final = """
SELECT array_agg(c.relname::text ORDER BY c.relname) FROM pg_class c
 WHERE c.relnamespace = to_regnamespace('headwater') AND c.relname = ANY (%s::text[])
   AND (SELECT count(*) FROM pg_attribute WHERE attrelid = to_regclass('headwater.heartbeat')
           AND attname IN ('id', 'beat_at') AND NOT attisdropped) < 2
"""
"""Relations of our tables' names in a schema that another has made."""


def exists(connection: Connection[Any]) -> bool:
    """Tells whether the schema is there with all its tables."""
    row = connection.execute(_EXISTS, (list(TABLES),)).fetchone()
    return bool(row and row[0])


def ensure(connection: Connection[Any]) -> list[str]:
    """Creates what of the schema is missing; returns what was changed.

    Raises:
        SchemaOwnerError: It has another's relations of our tables' names, or is another role's.
    """
    there = exists(connection)
    row = connection.execute(_ANOTHERS, (list(TABLES),)).fetchone()
    if row and row[0]:
        raise SchemaOwnerError(
            "schema headwater contains objects that Headwater did not create",
            detail=", ".join(row[0]),
            hint="rename it with ALTER SCHEMA headwater RENAME TO; Headwater needs this name",
        )
    if there and connection.execute(_CURRENT).fetchone() == (True,):
        return []  # a role without CREATE may run it when an owner has prepared the schema
    made(connection)
    return ["added to schema headwater" if there else "created schema headwater"]


def made(connection: Connection[Any]) -> None:
    """Creates what of the schema is missing, its function always.

    Raises:
        SchemaOwnerError: It belongs to another role, which has to do it.
    """
    try:
        with connection.transaction():
            connection.execute(SQL)
    except InsufficientPrivilege as error:
        raise SchemaOwnerError(
            "schema headwater belongs to another role and is incomplete",
            detail=error.diag.message_primary,
            hint="an administrator must run the SQL that headwater source role prints",
        ) from error
