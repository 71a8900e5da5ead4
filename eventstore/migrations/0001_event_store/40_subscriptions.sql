-- Subscriptions: who has read the log how far, and what waits because its handler failed.
--
-- Advisory locks: 1749235 is held, shared, by the session of each running member of a subscription;
-- 1749236 by the one member that has a partition; 1749237 while a subscription is being declared.
-- Locks of sessions go with their connection, so a dead member's partitions are free at once.
--
-- Whoever changes anything about a partition locks its row first: a batch for as long as it runs,
-- an operator for the moment of the change. So the two never interleave.

-- How far each partition of each subscription has come.
CREATE TABLE eventstore.subscriptions (
    tenant text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    partition integer NOT NULL,
    partitions integer NOT NULL,
    lock_id integer GENERATED ALWAYS AS IDENTITY,
    global_position bigint NOT NULL,          -- everything up to here is handled or parked
    replay_until bigint NOT NULL DEFAULT 0,   -- no side effects for events up to here
    replay_through bigint,                    -- a replay of a part ends here,
    resume_at bigint,                         -- and goes on from here
    earlier json,                             -- positions of former partitionings: [[…], …]
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_subscriptions PRIMARY KEY (tenant, name, partition),
    CONSTRAINT uq_subscriptions_lock_id UNIQUE (lock_id),
    CONSTRAINT ck_subscriptions_partition CHECK (partition >= 0 AND partition < partitions),
    CONSTRAINT ck_subscriptions_global_position CHECK (global_position >= 0),
    CONSTRAINT ck_subscriptions_replay CHECK ((replay_through IS NULL) = (resume_at IS NULL))
);

-- Events whose handler failed, and the later ones of their streams, which wait behind them.
-- The first of a stream is 'retrying' by itself or 'parked' until somebody decides.
-- What went wrong is told by codes and types: an error's text may have values of rows in it.
CREATE TABLE eventstore.parked_events (
    tenant text COLLATE "C" NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    global_position bigint NOT NULL,
    state text NOT NULL,
    live boolean NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    error_code text,
    error_type text,
    retry_at timestamptz,
    parked_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_parked_events PRIMARY KEY (tenant, subscription, stream, global_position),
    CONSTRAINT ck_parked_events_state CHECK (state IN ('retrying', 'parked', 'waiting')),
    CONSTRAINT ck_parked_events_retry_at CHECK ((state = 'retrying') = (retry_at IS NOT NULL))
);

-- one event at the head of each stream
CREATE UNIQUE INDEX uq_parked_events_head
    ON eventstore.parked_events (tenant, subscription, stream) WHERE state <> 'waiting';

SELECT eventstore.hold_to_tenant(held::regclass)
  FROM unnest(ARRAY['eventstore.subscriptions', 'eventstore.parked_events']) AS t(held);

-- Which partition a stream belongs to: the same on every machine and for ever, which Postgres'
-- own hash functions do not promise.
CREATE FUNCTION eventstore.partition_of(_tenant text, _stream text, _partitions integer)
RETURNS integer
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT (('x' || encode(substring(sha256(convert_to(_tenant || '/' || _stream, 'UTF8'))
                                     FROM 1 FOR 7), 'hex'))::bit(56)::bigint % _partitions)::integer
$$;

-- Whether an event was handled, or parked, when the subscription had other partitions.
CREATE FUNCTION eventstore.delivered_before(
    _earlier json, _tenant text, _stream text, _global_position bigint
) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM json_array_elements(_earlier) AS former(positions)
         WHERE _global_position <= (positions ->> eventstore.partition_of(
                   _tenant, _stream, json_array_length(positions)))::bigint)
$$;

-- Declares a subscription unless it is there. A start of -1 is the log's present end. False: the
-- start is beyond the end of the log.
CREATE FUNCTION eventstore.declare_subscription(
    _tenant text, _name text, _partitions integer, _start bigint, _silent_to_end boolean
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    _mark bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(1749237, hashtext(_tenant || '/' || _name));
    IF EXISTS (SELECT FROM eventstore.subscriptions WHERE tenant = _tenant AND name = _name) THEN
        RETURN true;
    END IF;
    _mark := eventstore.high_water_mark();
    IF _start > eventstore.head() THEN
        RETURN false;
    END IF;
    INSERT INTO eventstore.subscriptions
        (tenant, name, partition, partitions, global_position, replay_until)
    SELECT _tenant, _name, number, _partitions,
           CASE WHEN _start < 0 THEN _mark ELSE _start END,
           CASE WHEN _silent_to_end THEN _mark ELSE 0 END
      FROM generate_series(0, _partitions - 1) AS number;
    RETURN true;
END
$$;

-- Makes this session a member. Waits while the partitions are being changed.
CREATE FUNCTION eventstore.join_subscription(_tenant text, _name text, _partitions integer)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    _group integer := (SELECT lock_id FROM eventstore.subscriptions
                        WHERE tenant = _tenant AND name = _name AND partition = 0);
BEGIN
    PERFORM pg_advisory_lock_shared(1749235, _group);
    IF EXISTS (SELECT FROM eventstore.subscriptions
                WHERE lock_id = _group AND partitions = _partitions) THEN
        RETURN true;
    END IF;
    PERFORM pg_advisory_unlock_shared(1749235, _group);
    RETURN false;
END
$$;

-- Takes this member's fair share of the partitions, gives up what is above it, and returns what it
-- has. Shares go by rank: with 5 partitions and 2 members, 3 and 2.
CREATE FUNCTION eventstore.claim_partitions(_tenant text, _name text) RETURNS integer[]
LANGUAGE plpgsql AS $$
DECLARE
    _group record;
    _members integer[];
    _share integer;
    _partition record;
    _mine integer[] := '{}';
    _done boolean;
BEGIN
    SELECT lock_id, partitions INTO _group
      FROM eventstore.subscriptions
     WHERE tenant = _tenant AND name = _name AND partition = 0;
    _members := ARRAY(
        SELECT DISTINCT pid
          FROM pg_locks
         WHERE locktype = 'advisory' AND classid = 1749235 AND objid = _group.lock_id::oid
           AND objsubid = 2 AND granted AND mode = 'ShareLock'
           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
         ORDER BY pid);
    _share := _group.partitions / cardinality(_members)
        + CASE WHEN array_position(_members, pg_backend_pid())
                    <= _group.partitions % cardinality(_members) THEN 1 ELSE 0 END;
    FOR _partition IN
        SELECT partition, lock_id, owner
          FROM eventstore.partition_owners
         WHERE tenant = _tenant AND name = _name
         ORDER BY owner IS DISTINCT FROM pg_backend_pid(), partition
    LOOP
        IF _partition.owner = pg_backend_pid() AND cardinality(_mine) >= _share THEN
            _done := pg_advisory_unlock(1749236, _partition.lock_id);
        ELSIF _partition.owner = pg_backend_pid()
              OR (_partition.owner IS NULL AND cardinality(_mine) < _share
                  AND pg_try_advisory_lock(1749236, _partition.lock_id)) THEN
            _mine := _mine || _partition.partition;
        END IF;
    END LOOP;
    RETURN _mine;
END
$$;

-- Which session has which partition.
CREATE VIEW eventstore.partition_owners WITH (security_invoker = true) AS
SELECT s.tenant, s.name, s.partition, s.lock_id, l.pid AS owner
  FROM eventstore.subscriptions AS s
  LEFT JOIN pg_locks AS l
    ON l.locktype = 'advisory' AND l.classid = 1749236 AND l.objid = s.lock_id::oid
   AND l.objsubid = 2 AND l.granted
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- Splits a subscription anew while no member runs. Every partition starts at the least position;
-- what was handled beyond it is told by the former positions and is not delivered again.
CREATE FUNCTION eventstore.repartition_subscription(_tenant text, _name text, _partitions integer)
RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    _group integer := (SELECT lock_id FROM eventstore.subscriptions
                        WHERE tenant = _tenant AND name = _name AND partition = 0);
    _least bigint;
    _levels json;
BEGIN
    IF _group IS NULL THEN
        RETURN 'absent';
    END IF;
    IF NOT pg_try_advisory_xact_lock(1749235, _group) THEN
        RETURN 'running';
    END IF;
    PERFORM FROM eventstore.subscriptions
      WHERE tenant = _tenant AND name = _name ORDER BY partition FOR UPDATE;
    IF EXISTS (SELECT FROM eventstore.subscriptions
                WHERE tenant = _tenant AND name = _name
                  AND (global_position < replay_until OR replay_through IS NOT NULL)) THEN
        RETURN 'replaying';
    END IF;
    SELECT min(global_position) INTO _least
      FROM eventstore.subscriptions WHERE tenant = _tenant AND name = _name;
    SELECT json_agg(positions) INTO _levels
      FROM (SELECT json_array_elements(earlier) AS positions
              FROM (SELECT earlier FROM eventstore.subscriptions
                     WHERE tenant = _tenant AND name = _name AND earlier IS NOT NULL
                     LIMIT 1) AS known
            UNION ALL
            SELECT json_agg(global_position ORDER BY partition)
              FROM eventstore.subscriptions WHERE tenant = _tenant AND name = _name) AS levels
     WHERE _least < (SELECT max(p::text::bigint) FROM json_array_elements(positions) AS p);
    DELETE FROM eventstore.subscriptions
     WHERE tenant = _tenant AND name = _name AND partition >= _partitions;
    INSERT INTO eventstore.subscriptions AS known
        (tenant, name, partition, partitions, global_position, replay_until, earlier)
    SELECT _tenant, _name, number, _partitions, _least, _least, _levels
      FROM generate_series(0, _partitions - 1) AS number
    ON CONFLICT (tenant, name, partition) DO UPDATE
       SET partitions = excluded.partitions, global_position = excluded.global_position,
           replay_until = excluded.replay_until, earlier = excluded.earlier,
           updated_at = clock_timestamp();
    RETURN 'done';
END
$$;

-- Delivers events again, silently: those after one position, up to another or to the end.
CREATE FUNCTION eventstore.replay_subscription(
    _tenant text, _name text, _from bigint, _through bigint
) RETURNS text
LANGUAGE plpgsql AS $$
BEGIN
    IF _through <= _from THEN
        RETURN 'empty';
    END IF;
    PERFORM FROM eventstore.subscriptions
      WHERE tenant = _tenant AND name = _name ORDER BY partition FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'absent';
    END IF;
    IF EXISTS (SELECT FROM eventstore.parked_events
                WHERE tenant = _tenant AND subscription = _name) THEN
        RETURN 'parked';
    END IF;
    IF EXISTS (SELECT FROM eventstore.subscriptions
                WHERE tenant = _tenant AND name = _name AND earlier IS NOT NULL) THEN
        RETURN 'repartitioning';
    END IF;
    UPDATE eventstore.subscriptions
       SET global_position = _from,
           replay_until = greatest(replay_until, global_position),
           replay_through = CASE WHEN _through IS NOT NULL
                THEN least(_through, coalesce(resume_at, global_position)) END,
           resume_at = CASE WHEN _through IS NOT NULL
                THEN coalesce(resume_at, global_position) END,
           updated_at = clock_timestamp()
     WHERE tenant = _tenant AND name = _name AND _from < coalesce(resume_at, global_position);
    IF NOT FOUND THEN
        RETURN 'ahead';
    END IF;
    PERFORM pg_notify('eventstore', '');
    RETURN 'done';
END
$$;

-- Lets the parked events of a stream be tried again, in their order, now.
CREATE FUNCTION eventstore.retry_parked(_tenant text, _name text, _stream text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM eventstore.subscriptions
      WHERE tenant = _tenant AND name = _name ORDER BY partition FOR UPDATE;
    UPDATE eventstore.parked_events
       SET state = 'retrying', attempts = 0, retry_at = clock_timestamp()
     WHERE tenant = _tenant AND subscription = _name AND stream = _stream AND state <> 'waiting';
    IF FOUND THEN
        PERFORM pg_notify('eventstore', '');
    END IF;
    RETURN FOUND;
END
$$;

-- Gives up the first parked event of a stream, or all of them; returns how many.
CREATE FUNCTION eventstore.drop_parked(_tenant text, _name text, _stream text, _all boolean)
RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    _dropped bigint;
BEGIN
    PERFORM FROM eventstore.subscriptions
      WHERE tenant = _tenant AND name = _name ORDER BY partition FOR UPDATE;
    DELETE FROM eventstore.parked_events
     WHERE tenant = _tenant AND subscription = _name AND stream = _stream
       AND (_all OR state <> 'waiting');
    GET DIAGNOSTICS _dropped = ROW_COUNT;
    PERFORM eventstore.promote_parked(_tenant, _name, _stream);
    PERFORM pg_notify('eventstore', '');
    RETURN _dropped;
END
$$;

-- Makes the next event that waits the head of its stream, after the head before has gone.
CREATE FUNCTION eventstore.promote_parked(_tenant text, _name text, _stream text) RETURNS void
LANGUAGE sql AS $$
    UPDATE eventstore.parked_events
       SET state = 'retrying', retry_at = clock_timestamp()
     WHERE tenant = _tenant AND subscription = _name AND stream = _stream
       AND global_position = (SELECT min(global_position)
                                FROM eventstore.parked_events
                               WHERE tenant = _tenant AND subscription = _name
                                 AND stream = _stream)
$$;

-- Removes a subscription with everything it has parked, while no member runs.
CREATE FUNCTION eventstore.remove_subscription(_tenant text, _name text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    _group integer := (SELECT lock_id FROM eventstore.subscriptions
                        WHERE tenant = _tenant AND name = _name AND partition = 0);
BEGIN
    IF _group IS NULL THEN
        RETURN 'absent';
    END IF;
    IF NOT pg_try_advisory_xact_lock(1749235, _group) THEN
        RETURN 'running';
    END IF;
    DELETE FROM eventstore.parked_events WHERE tenant = _tenant AND subscription = _name;
    DELETE FROM eventstore.subscriptions WHERE tenant = _tenant AND name = _name;
    RETURN 'done';
END
$$;

-- Waking. A NOTIFY in every append would let appends commit one after another only. So a runner
-- that has nothing to do says so, 1 in this sequence, and the next append that sees it notifies and
-- takes the 1 away. A sequence, because its value is seen at once, outside of any transaction and
-- for less than a microsecond; unlogged, because after a crash nobody waits.
CREATE UNLOGGED SEQUENCE eventstore.wake_wanted MINVALUE 0 MAXVALUE 1 START 0;

GRANT SELECT ON SEQUENCE eventstore.wake_wanted TO PUBLIC;

CREATE FUNCTION eventstore.wake() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval('eventstore.wake_wanted', 0);
    PERFORM pg_notify('eventstore', '');
END
$$;

-- Says that this session is about to wait, then where the log ends. A writer looks at the sequence
-- after it has drawn its position: if it looked before this, its position is not above that end.
CREATE FUNCTION eventstore.want_wake() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval('eventstore.wake_wanted', 1);
    RETURN eventstore.head();
END
$$;

-- Every append ends with this: a trigger would cost ten times as much.
CREATE FUNCTION eventstore.wake_if_wanted() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF pg_sequence_last_value('eventstore.wake_wanted') = 1 THEN
        PERFORM eventstore.wake();
    END IF;
END
$$;
