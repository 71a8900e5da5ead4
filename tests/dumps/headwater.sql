-- Made by pg_dump from what the commit before the migrations of foundation.migration made, with a row in each table.
SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

CREATE SCHEMA headwater;

CREATE FUNCTION headwater.may_stream(capture text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE headwater.alert_episodes (
    source text NOT NULL,
    alert text NOT NULL,
    key text NOT NULL,
    number bigint NOT NULL,
    columns jsonb NOT NULL,
    state text NOT NULL,
    since timestamp with time zone NOT NULL,
    ended timestamp with time zone,
    until timestamp with time zone,
    CONSTRAINT alert_episodes_state_check CHECK ((state = ANY (ARRAY['pending'::text, 'open'::text, 'ending'::text])))
);

ALTER TABLE headwater.alert_episodes ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headwater.alert_episodes_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE headwater.alert_messages (
    number bigint NOT NULL,
    source text NOT NULL,
    alert text NOT NULL,
    key text NOT NULL,
    channel text NOT NULL,
    id text NOT NULL,
    body bytea NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    code text,
    next_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    made_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE headwater.alert_messages ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headwater.alert_messages_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE headwater.captures (
    source text NOT NULL,
    epoch integer NOT NULL,
    slot text NOT NULL,
    slot_made_at pg_lsn NOT NULL,
    system_id bigint NOT NULL,
    timeline integer NOT NULL,
    made_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    cleared_lsn pg_lsn,
    captured_lsn pg_lsn,
    topics jsonb,
    beat_number bigint,
    beat_lsn pg_lsn,
    beat_offset bigint,
    lost text,
    lost_detail text,
    lost_at timestamp with time zone,
    repairing integer,
    wal_lsn pg_lsn,
    wal_at timestamp with time zone
);

CREATE TABLE headwater.heartbeat (
    id integer NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    number bigint DEFAULT 0 NOT NULL
);

CREATE TABLE headwater.quarantine (
    view text NOT NULL,
    store text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    record_offset bigint NOT NULL,
    source text NOT NULL,
    key text NOT NULL,
    state text DEFAULT 'waiting'::text NOT NULL,
    version bigint,
    code text NOT NULL,
    message text NOT NULL,
    detail text,
    hint text,
    attempts integer NOT NULL,
    seen_lsn pg_lsn DEFAULT pg_current_wal_insert_lsn() NOT NULL,
    first_seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    last_seen_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tried_at timestamp with time zone,
    settled_at timestamp with time zone,
    read_asked_at timestamp with time zone,
    record_key bytea,
    record_value bytea,
    epoch text,
    old_key bytea,
    digest bytea NOT NULL,
    CONSTRAINT quarantine_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'retry'::text, 'dropped'::text, 'superseded'::text])))
);

CREATE TABLE headwater.schema_changes (
    id bigint NOT NULL,
    table_oid bigint NOT NULL,
    lsn pg_lsn NOT NULL,
    seen_after pg_lsn,
    command text NOT NULL,
    rewritten boolean,
    shape jsonb,
    noted_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE headwater.schema_changes ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headwater.schema_changes_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE headwater.schema_outcomes (
    change_id bigint NOT NULL,
    view text NOT NULL,
    outcome text NOT NULL,
    decided_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE headwater.snapshots (
    id bigint NOT NULL,
    source text NOT NULL,
    epoch integer NOT NULL,
    table_schema text NOT NULL,
    table_name text NOT NULL,
    predicate text,
    keys jsonb,
    state text DEFAULT 'waiting'::text NOT NULL,
    read_lsn pg_lsn,
    rows_expected bigint,
    rows_read bigint DEFAULT 0 NOT NULL,
    progress jsonb,
    end_offsets jsonb,
    failure text,
    asked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    begun_at timestamp with time zone,
    ended_at timestamp with time zone,
    resumed_at timestamp with time zone,
    rows_resumed bigint DEFAULT 0 NOT NULL,
    CONSTRAINT snapshots_state_check CHECK ((state = ANY (ARRAY['waiting'::text, 'reading'::text, 'done'::text, 'failed'::text, 'cancelled'::text])))
);

ALTER TABLE headwater.snapshots ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME headwater.snapshots_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE headwater.sweeps (
    view text NOT NULL,
    store text NOT NULL,
    below_version bigint NOT NULL,
    removed bigint NOT NULL,
    swept_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE headwater.view_positions (
    view text NOT NULL,
    store text NOT NULL,
    source text NOT NULL,
    applied_through pg_lsn NOT NULL,
    updated_at timestamp with time zone NOT NULL
);

CREATE TABLE headwater.view_shapes (
    view text NOT NULL,
    source text NOT NULL,
    table_oid bigint NOT NULL,
    tables jsonb NOT NULL,
    change_id bigint NOT NULL,
    shape_id bigint NOT NULL,
    columns jsonb NOT NULL,
    left_to_read bigint DEFAULT 0 NOT NULL,
    kept_since bigint DEFAULT 0 NOT NULL,
    read_id bigint,
    paused jsonb,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE headwater.view_verifications (
    view text NOT NULL,
    store text NOT NULL,
    source text NOT NULL,
    verified_through pg_lsn,
    verified_at timestamp with time zone,
    looked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    rows bigint NOT NULL,
    missing bigint NOT NULL,
    extra bigint NOT NULL,
    different bigint NOT NULL,
    quarantined bigint NOT NULL,
    moving bigint NOT NULL
);

CREATE TABLE headwater.view_versions (
    source text NOT NULL,
    view text NOT NULL,
    version integer NOT NULL,
    place text NOT NULL,
    state text NOT NULL,
    definition jsonb NOT NULL,
    reasons text[] NOT NULL,
    bounds jsonb,
    replayed jsonb,
    fault jsonb,
    switching boolean DEFAULT false NOT NULL,
    made_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    changed_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT view_versions_state_check CHECK ((state = ANY (ARRAY['building'::text, 'joining'::text, 'held'::text, 'current'::text, 'former'::text, 'dropped'::text])))
);

INSERT INTO headwater.alert_episodes (source, alert, key, number, columns, state, since, ended, until) OVERRIDING SYSTEM VALUE VALUES ('shop', 'large', '7', 1, '{"id": 7}', 'open', '2026-11-28 14:08:43.588179+00', NULL, NULL);

INSERT INTO headwater.alert_messages (number, source, alert, key, channel, id, body, attempts, code, next_at, made_at) OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 'large', '7', 'pager', 'm1', '\x7b7d', 0, NULL, '2026-11-28 14:08:43.59037+00', '2026-11-28 14:08:43.59037+00');

INSERT INTO headwater.captures (source, epoch, slot, slot_made_at, system_id, timeline, made_at, cleared_lsn, captured_lsn, topics, beat_number, beat_lsn, beat_offset, lost, lost_detail, lost_at, repairing, wal_lsn, wal_at) VALUES ('shop', 1, 'headwater_shop', '0/10', 7, 1, '2026-11-28 14:08:43.588731+00', NULL, '0/15', '{"shop.orders": {"id": "a", "ends": [3]}}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

INSERT INTO headwater.heartbeat (id, beat_at, number) VALUES (1, '2026-11-28 14:08:43.574273+00', 0);

INSERT INTO headwater.quarantine (view, store, topic, partition, record_offset, source, key, state, version, code, message, detail, hint, attempts, seen_lsn, first_seen_at, last_seen_at, tried_at, settled_at, read_asked_at, record_key, record_value, epoch, old_key, digest) VALUES ('orders', 'cache', 'shop.orders', 0, 2, 'shop', '7', 'waiting', NULL, 'HW-P001', 'cannot be applied', NULL, NULL, 1, '0/1839988', '2026-11-28 14:08:43.589516+00', '2026-11-28 14:08:43.589516+00', NULL, NULL, NULL, NULL, NULL, NULL, NULL, '\x00');

INSERT INTO headwater.schema_changes (id, table_oid, lsn, seen_after, command, rewritten, shape, noted_at) OVERRIDING SYSTEM VALUE VALUES (1, 16400, '0/11', NULL, 'CREATE TABLE', NULL, '{"columns": []}', '2026-11-28 14:08:43.589175+00');

INSERT INTO headwater.schema_outcomes (change_id, view, outcome, decided_at) VALUES (1, 'orders', 'followed', '2026-11-28 14:08:43.58941+00');

INSERT INTO headwater.snapshots (id, source, epoch, table_schema, table_name, predicate, keys, state, read_lsn, rows_expected, rows_read, progress, end_offsets, failure, asked_at, begun_at, ended_at, resumed_at, rows_resumed) OVERRIDING SYSTEM VALUE VALUES (1, 'shop', 1, 'public', 'orders', NULL, NULL, 'done', '0/12', 3, 3, NULL, NULL, NULL, '2026-11-28 14:08:43.588925+00', NULL, NULL, NULL, 0);

INSERT INTO headwater.sweeps (view, store, below_version, removed, swept_at) VALUES ('orders', 'cache', 5, 1, '2026-11-28 14:08:43.589675+00');

INSERT INTO headwater.view_positions (view, store, source, applied_through, updated_at) VALUES ('orders', 'warehouse', 'shop', '0/16', '2026-11-28 14:08:43.588179+00');

INSERT INTO headwater.view_shapes (view, source, table_oid, tables, change_id, shape_id, columns, left_to_read, kept_since, read_id, paused, updated_at) VALUES ('orders', 'shop', 16400, '[["public", "orders"]]', 1, 1, '{}', 0, 0, NULL, NULL, '2026-11-28 14:08:43.589327+00');

INSERT INTO headwater.view_verifications (view, store, source, verified_through, verified_at, looked_at, rows, missing, extra, different, quarantined, moving) VALUES ('orders', 'cache', 'shop', NULL, NULL, '2026-11-28 14:08:43.59015+00', 3, 0, 0, 0, 1, 0);

INSERT INTO headwater.view_versions (source, view, version, place, state, definition, reasons, bounds, replayed, fault, switching, made_at, changed_at) VALUES ('shop', 'orders', 1, 'orders', 'current', '{}', '{}', NULL, NULL, NULL, false, '2026-11-28 14:08:43.589954+00', '2026-11-28 14:08:43.589954+00');

SELECT pg_catalog.setval('headwater.alert_episodes_number_seq', 1, true);

SELECT pg_catalog.setval('headwater.alert_messages_number_seq', 1, true);

SELECT pg_catalog.setval('headwater.schema_changes_id_seq', 1, true);

SELECT pg_catalog.setval('headwater.snapshots_id_seq', 1, true);

ALTER TABLE ONLY headwater.alert_episodes
    ADD CONSTRAINT alert_episodes_pkey PRIMARY KEY (source, alert, key);

ALTER TABLE ONLY headwater.alert_messages
    ADD CONSTRAINT alert_messages_pkey PRIMARY KEY (number);

ALTER TABLE ONLY headwater.alert_messages
    ADD CONSTRAINT alert_messages_source_channel_id_key UNIQUE (source, channel, id);

ALTER TABLE ONLY headwater.captures
    ADD CONSTRAINT captures_pkey PRIMARY KEY (source);

ALTER TABLE ONLY headwater.heartbeat
    ADD CONSTRAINT heartbeat_pkey PRIMARY KEY (id);

ALTER TABLE ONLY headwater.quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (view, store, topic, partition, record_offset);

ALTER TABLE ONLY headwater.schema_changes
    ADD CONSTRAINT schema_changes_pkey PRIMARY KEY (id);

ALTER TABLE ONLY headwater.schema_outcomes
    ADD CONSTRAINT schema_outcomes_pkey PRIMARY KEY (change_id, view);

ALTER TABLE ONLY headwater.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (id);

ALTER TABLE ONLY headwater.sweeps
    ADD CONSTRAINT sweeps_pkey PRIMARY KEY (view, store, below_version);

ALTER TABLE ONLY headwater.view_positions
    ADD CONSTRAINT view_positions_pkey PRIMARY KEY (view, store);

ALTER TABLE ONLY headwater.view_shapes
    ADD CONSTRAINT view_shapes_pkey PRIMARY KEY (view);

ALTER TABLE ONLY headwater.view_verifications
    ADD CONSTRAINT view_verifications_pkey PRIMARY KEY (view, store);

ALTER TABLE ONLY headwater.view_versions
    ADD CONSTRAINT view_versions_pkey PRIMARY KEY (source, view, version);

ALTER TABLE ONLY headwater.view_versions
    ADD CONSTRAINT view_versions_source_place_key UNIQUE (source, place);

CREATE INDEX quarantine_by_key ON headwater.quarantine USING btree (source, store, view, key);

CREATE INDEX quarantine_due ON headwater.quarantine USING btree (source, store) WHERE (state = 'retry'::text);

CREATE INDEX schema_changes_by_table ON headwater.schema_changes USING btree (table_oid, id);

CREATE INDEX snapshots_by_table ON headwater.snapshots USING btree (source, epoch, table_schema, table_name, id);

CREATE UNIQUE INDEX view_versions_current ON headwater.view_versions USING btree (source, view) WHERE (state = 'current'::text);
