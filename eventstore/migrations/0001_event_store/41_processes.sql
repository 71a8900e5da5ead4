-- Processes: what process managers have taken in, and what they are waiting for.
--
-- A process' state is the fold of its inputs. They are kept as references to the log, so no
-- payload has a second place; only what the log does not have, a timeout or a refusal, is told by
-- name. Whoever touches inputs or timers of a process locks its row first.

CREATE TABLE eventstore.processes (
    tenant text COLLATE "C" NOT NULL,
    manager text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    inputs integer NOT NULL DEFAULT 0,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    CONSTRAINT pk_processes PRIMARY KEY (tenant, manager, process_id)
);

CREATE TABLE eventstore.process_inputs (
    tenant text COLLATE "C" NOT NULL,
    manager text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    number integer NOT NULL,
    kind text NOT NULL,
    global_position bigint,   -- of an event
    name text,                -- of a timer; type of a refused command
    reason text,              -- type of the refusal
    at timestamptz,           -- when a timer was due
    taken_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_process_inputs PRIMARY KEY (tenant, manager, process_id, number),
    CONSTRAINT ck_process_inputs_kind CHECK (CASE kind
        WHEN 'event' THEN global_position IS NOT NULL
        WHEN 'timeout' THEN name IS NOT NULL AND at IS NOT NULL
        WHEN 'refusal' THEN name IS NOT NULL AND reason IS NOT NULL
        ELSE false END)
);

-- an event is taken in once, however often it is delivered
CREATE UNIQUE INDEX uq_process_inputs_event
    ON eventstore.process_inputs (tenant, manager, process_id, global_position)
    WHERE global_position IS NOT NULL;

-- Each fires once: firing is deleting its row, in the transaction of what it causes. The database's
-- clock says when; set forwards or back it makes a timer early or late, never lost and never twice.
CREATE TABLE eventstore.timers (
    tenant text COLLATE "C" NOT NULL,
    manager text COLLATE "C" NOT NULL,
    process_id text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    due_at timestamptz NOT NULL,
    fires_at timestamptz NOT NULL,   -- later than due after a failure; infinity: somebody must look
    attempts integer NOT NULL DEFAULT 0,
    error_code text,
    error_type text,
    CONSTRAINT pk_timers PRIMARY KEY (tenant, manager, process_id, name)
);

CREATE INDEX ix_timers_fires_at ON eventstore.timers (tenant, manager, fires_at);

SELECT eventstore.hold_to_tenant(held::regclass)
  FROM unnest(ARRAY['eventstore.processes', 'eventstore.process_inputs', 'eventstore.timers'])
       AS t(held);

-- What the role of a subscriber or a process manager needs besides eventstore.grant_use.
CREATE FUNCTION eventstore.grant_subscriptions(_role name) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON eventstore.subscriptions, '
                   'eventstore.parked_events, eventstore.processes, eventstore.process_inputs, '
                   'eventstore.timers TO %I', _role);
    EXECUTE format('GRANT SELECT ON eventstore.partition_owners TO %I', _role);
END
$$;
