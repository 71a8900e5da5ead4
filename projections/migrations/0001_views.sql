-- All of it may be run again: installations from before there was a record of migrations lack parts.
-- How far each view has come in each store.
CREATE TABLE IF NOT EXISTS headwater.view_positions (
    view text,
    store text,
    source text NOT NULL,
    applied_through pg_lsn NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (view, store)
);
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
