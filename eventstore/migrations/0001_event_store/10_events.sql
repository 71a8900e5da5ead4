CREATE SCHEMA eventstore;

CREATE SEQUENCE eventstore.global_position AS bigint;

-- Every event, once. Rows are inserted and never changed; only compaction moves them away.
-- Names are compared byte by byte, so the collation is "C".
CREATE TABLE eventstore.events (
    global_position bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    stream_position bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    schema_version smallint NOT NULL,
    event_id uuid NOT NULL,
    data json NOT NULL,              -- json, not jsonb: the text stays as it was hashed
    metadata json,
    tags text[],
    correlation_id text,
    causation_id text,
    actor text,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_events PRIMARY KEY (global_position),
    -- what makes two writers of one version impossible, whatever the code does
    CONSTRAINT uq_events_stream_position UNIQUE (tenant, stream, stream_position),
    CONSTRAINT uq_events_event_id UNIQUE (tenant, event_id),
    CONSTRAINT ck_events_stream_position CHECK (stream_position >= 1),
    CONSTRAINT ck_events_schema_version CHECK (schema_version >= 1)
);

-- one tenant's log, one category's, one type's, each in global order
CREATE INDEX ix_events_tenant ON eventstore.events (tenant, global_position);

CREATE INDEX ix_events_category
    ON eventstore.events (tenant, split_part(stream, '-', 1), global_position);

CREATE INDEX ix_events_type ON eventstore.events (tenant, type, global_position);

-- The original events of compacted streams: same columns, same identity.
CREATE TABLE eventstore.archived_events (
    global_position bigint NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    stream_position bigint NOT NULL,
    type text COLLATE "C" NOT NULL,
    schema_version smallint NOT NULL,
    event_id uuid NOT NULL,
    data json NOT NULL,
    metadata json,
    tags text[],
    correlation_id text,
    causation_id text,
    actor text,
    occurred_at timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    CONSTRAINT pk_archived_events PRIMARY KEY (global_position),
    CONSTRAINT uq_archived_events_stream_position UNIQUE (tenant, stream, stream_position),
    CONSTRAINT uq_archived_events_event_id UNIQUE (tenant, event_id)
);

CREATE INDEX ix_archived_events_tenant ON eventstore.archived_events (tenant, global_position);

CREATE INDEX ix_archived_events_category
    ON eventstore.archived_events (tenant, split_part(stream, '-', 1), global_position);

CREATE INDEX ix_archived_events_type
    ON eventstore.archived_events (tenant, type, global_position);

-- Which events carry a tag; kept when the events are archived.
CREATE TABLE eventstore.event_tags (
    tenant text COLLATE "C" NOT NULL,
    tag text COLLATE "C" NOT NULL,
    global_position bigint NOT NULL,
    CONSTRAINT pk_event_tags PRIMARY KEY (tenant, tag, global_position)
);

-- The whole log as it was written: a compacted stream's original events in their old places,
-- the events that stand for them left out.
CREATE VIEW eventstore.log WITH (security_invoker = true) AS
SELECT global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
       metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at
  FROM eventstore.events
 WHERE type <> '$snapshot'
UNION ALL
SELECT global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
       metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at
  FROM eventstore.archived_events;

-- What was done under an idempotency key.
CREATE TABLE eventstore.idempotency_keys (
    tenant text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    versions bigint[] NOT NULL,
    global_position bigint NOT NULL,
    transaction_id bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_idempotency_keys PRIMARY KEY (tenant, key),
    CONSTRAINT ck_idempotency_keys_digest CHECK (octet_length(digest) = 32)
);

CREATE INDEX ix_idempotency_keys_recorded_at ON eventstore.idempotency_keys (recorded_at);

-- Saved states; each can be thrown away at any time.
CREATE TABLE eventstore.snapshots (
    tenant text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    fold text COLLATE "C" NOT NULL,
    stream_position bigint NOT NULL,
    state bytea NOT NULL,
    digest bytea NOT NULL,
    subjects text[] NOT NULL DEFAULT '{}',
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_snapshots PRIMARY KEY (tenant, stream, fold)
);
