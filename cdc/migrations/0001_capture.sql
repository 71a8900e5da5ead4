-- All of it may be run again: installations from before there was a record of migrations lack parts.
CREATE TABLE IF NOT EXISTS headwater.heartbeat (
    id int PRIMARY KEY,
    beat_at timestamptz NOT NULL
);
ALTER TABLE headwater.heartbeat ADD COLUMN IF NOT EXISTS number bigint NOT NULL DEFAULT 0;
INSERT INTO headwater.heartbeat (id, beat_at) VALUES (1, clock_timestamp())
    ON CONFLICT (id) DO NOTHING;
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
