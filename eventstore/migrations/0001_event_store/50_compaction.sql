-- Compaction: the beginning of a stream, folded into one `$snapshot` event, for those who fold it.
-- The originals move to the archive in the same transaction; the log still shows them.

-- What was compacted, and what was dropped from the archive. Each row's hash covers the one before,
-- so the audit finds a `$snapshot` that was changed, and knows which events are rightly missing.
CREATE TABLE eventstore.compactions (
    number bigint NOT NULL,
    action text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    stream text COLLATE "C" NOT NULL,
    first_position bigint NOT NULL,    -- in the stream
    through_position bigint NOT NULL,  -- in the stream
    global_position bigint NOT NULL,   -- of the last of them, and so of the `$snapshot`
    -- of what was dropped: each event's place in the log
    positions bigint[] NOT NULL DEFAULT '{}',
    -- SHA-256 of the `$snapshot`'s row, or of the dropped rows in their order
    digest bytea NOT NULL,
    recorded_at timestamptz NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT pk_compactions PRIMARY KEY (number),
    CONSTRAINT ck_compactions_action CHECK (action IN ('compacted', 'dropped')),
    CONSTRAINT ck_compactions_range CHECK (1 <= first_position AND first_position <= through_position),
    CONSTRAINT ck_compactions_positions CHECK ((action = 'dropped') = (cardinality(positions) > 0)),
    CONSTRAINT ck_compactions_digest CHECK (octet_length(digest) = 32),
    CONSTRAINT ck_compactions_hash CHECK (octet_length(hash) = 32)
);

CREATE INDEX ix_compactions_stream ON eventstore.compactions (tenant, stream, number);

SELECT eventstore.hold_to_tenant('eventstore.compactions');

CREATE TRIGGER compactions_are_facts
    BEFORE UPDATE OR DELETE OR TRUNCATE ON eventstore.compactions
    FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();

-- Adds a row to the chain. Whoever adds one waits for the one before to be committed: 1749238 is
-- the class of the chains, 1 this one.
CREATE FUNCTION eventstore.record_compaction(
    _action text, _tenant text, _stream text, _first bigint, _through bigint,
    _global_position bigint, _positions bigint[], _digest bytea
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    _number bigint;
    _previous bytea;
    _now timestamptz := clock_timestamp();
BEGIN
    PERFORM pg_advisory_xact_lock(1749238, 1);
    SELECT number, hash INTO _number, _previous
      FROM eventstore.compactions
     ORDER BY number DESC
     LIMIT 1;
    _number := coalesce(_number, 0) + 1;
    INSERT INTO eventstore.compactions (
        number, action, tenant, stream, first_position, through_position, global_position,
        positions, digest, recorded_at, hash)
    VALUES (
        _number, _action, _tenant, _stream, _first, _through, _global_position,
        _positions, _digest, _now,
        sha256(coalesce(_previous, sha256('headwater compactions 1')) || record_send(ROW(
            _number, _action, _tenant, _stream, _first, _through, _global_position,
            _positions, _digest, _now))));
END
$$;

-- Transactions under way that may not see an event yet. One that has an older snapshot could take the
-- stream for shorter than it is, and append at a position that compaction has made free; so
-- compaction waits for them to end, before it locks anything. Who begins later sees the event.
CREATE FUNCTION eventstore.transactions_before(_tenant text, _stream text, _position bigint)
RETURNS text[]
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN
        RAISE EXCEPTION 'this role does not see which transactions are under way'
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('GRANT pg_read_all_stats TO %I', current_user);
    END IF;
    PERFORM pg_stat_clear_snapshot();
    RETURN ARRAY(
        SELECT lock.virtualxid
          FROM eventstore.events AS event,
               pg_stat_activity AS session
          JOIN pg_locks AS lock
            ON lock.pid = session.pid AND lock.locktype = 'virtualxid' AND lock.granted
               AND lock.virtualxid = lock.virtualtransaction
         WHERE event.tenant = _tenant
           AND event.stream = _stream
           AND event.stream_position = _position
           AND session.datname = current_database()
           AND session.pid <> pg_backend_pid()
           AND session.backend_type NOT IN ('walsender', 'autovacuum worker')
           AND age(session.backend_xmin) >= age(event.xmin));
END
$$;

-- Puts one `$snapshot` in the place of a stream's events up to and with a position.
-- False, and nothing done, if the stream does not begin with the event that the state was folded
-- from: someone else compacted it meanwhile.
CREATE FUNCTION eventstore.compact(
    _tenant text, _stream text, _begins_with uuid, _through bigint, _event_id uuid, _data json
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    _begin eventstore.events;
    _last eventstore.events;
    _row eventstore.events;
    _moved bigint;
BEGIN
    -- writers of the stream wait, so its head stands still
    PERFORM pg_advisory_xact_lock(1749232, hashtext(_tenant || '/' || _stream));
    SELECT * INTO _begin FROM eventstore.events
     WHERE tenant = _tenant AND stream = _stream ORDER BY stream_position LIMIT 1;
    IF _begin.event_id IS DISTINCT FROM _begins_with THEN
        RETURN false;
    END IF;
    SELECT * INTO _last FROM eventstore.events
     WHERE tenant = _tenant AND stream = _stream AND stream_position = _through;
    IF NOT FOUND THEN
        RETURN false;
    END IF;

    PERFORM set_config('eventstore.compacting', 'on', true);
    WITH moved AS (
        DELETE FROM eventstore.events
         WHERE tenant = _tenant AND stream = _stream AND stream_position <= _through
        RETURNING *
    ), kept AS (
        -- an earlier `$snapshot` is no original: the new one says what it said
        INSERT INTO eventstore.archived_events (
            global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
            metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at)
        SELECT global_position, tenant, stream, stream_position, type, schema_version, event_id,
               data, metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at
          FROM moved
         WHERE type <> '$snapshot'
    )
    SELECT count(*) INTO _moved FROM moved;
    IF _moved <> _through - _begin.stream_position + 1 THEN
        RAISE EXCEPTION 'stream % has a gap before position %', _stream, _through
            USING ERRCODE = 'HWE03', HINT = 'headwater events verify';
    END IF;
    INSERT INTO eventstore.events (
        global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
        occurred_at)
    VALUES (
        _last.global_position, _tenant, _stream, _through, '$snapshot', 1, _event_id, _data,
        _last.occurred_at)
    RETURNING * INTO _row;
    PERFORM set_config('eventstore.compacting', '', true);

    PERFORM eventstore.record_compaction(
        'compacted', _tenant, _stream, 1, _through, _row.global_position, '{}',
        sha256(record_send(ROW(
            _row.global_position, _row.tenant, _row.stream, _row.stream_position, _row.type,
            _row.schema_version, _row.event_id, _row.data, _row.metadata, _row.tags,
            _row.correlation_id, _row.causation_id, _row.actor, _row.occurred_at,
            _row.recorded_at))));
    RETURN true;
END
$$;

-- Deletes a compacted stream's archived events up to and with a position, for good, and returns how
-- many. Their tags go with them; the seals keep their hashes, so what is not sealed yet stays.
CREATE FUNCTION eventstore.drop_archived(_tenant text, _stream text, _through bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    _dropped record;
BEGIN
    PERFORM pg_advisory_xact_lock(1749232, hashtext(_tenant || '/' || _stream));
    DELETE FROM eventstore.event_tags AS gone
     USING (SELECT global_position, unnest(tags) AS tag
              FROM eventstore.archived_events
             WHERE tenant = _tenant AND stream = _stream AND stream_position <= _through) AS event
     WHERE gone.tenant = _tenant
       AND gone.tag = event.tag
       AND gone.global_position = event.global_position;

    PERFORM set_config('eventstore.compacting', 'on', true);
    WITH dropped AS (
        DELETE FROM eventstore.archived_events
         WHERE tenant = _tenant AND stream = _stream AND stream_position <= _through
        RETURNING *
    )
    SELECT count(*) AS events,
           min(stream_position) AS first,
           max(stream_position) AS through,
           array_agg(global_position ORDER BY stream_position) AS positions,
           sha256(string_agg(sha256(record_send(ROW(
               global_position, tenant, stream, stream_position, type, schema_version, event_id,
               data, metadata, tags, correlation_id, causation_id, actor, occurred_at,
               recorded_at))), ''::bytea ORDER BY stream_position)) AS digest
      INTO _dropped
      FROM dropped;
    PERFORM set_config('eventstore.compacting', '', true);

    IF _dropped.events > 0 THEN
        IF _dropped.positions[_dropped.events] >
           coalesce((SELECT through_position FROM eventstore.seals ORDER BY block DESC LIMIT 1), 0) THEN
            RAISE EXCEPTION 'events of stream % are not sealed yet', _stream
                USING ERRCODE = 'HWE03', HINT = 'headwater events seal';
        END IF;
        PERFORM eventstore.record_compaction(
            'dropped', _tenant, _stream, _dropped.first, _dropped.through,
            _dropped.positions[_dropped.events], _dropped.positions, _dropped.digest);
    END IF;
    RETURN _dropped.events;
END
$$;

-- A category's streams in the order of their names: each found by one step in the index.
CREATE FUNCTION eventstore.streams_of(_tenant text, _category text, _after text, _limit integer)
RETURNS TABLE (
    stream text, first_position bigint, first_type text, head bigint, last_type text,
    last_recorded_at timestamptz)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE found AS (
        (SELECT 1 AS place, e.stream
           FROM eventstore.events AS e
          WHERE e.tenant = _tenant
            AND e.stream > _after
            AND e.stream >= _category
            AND e.stream < _category || '.'  -- the character after '-'
          ORDER BY e.stream
          LIMIT 1)
        UNION ALL
        SELECT found.place + 1, (
            SELECT e.stream
              FROM eventstore.events AS e
             WHERE e.tenant = _tenant
               AND e.stream > found.stream
               AND e.stream < _category || '.'
             ORDER BY e.stream
             LIMIT 1)
          FROM found
         WHERE found.stream IS NOT NULL AND found.place < _limit
    )
    SELECT found.stream, first.stream_position, first.type, last.stream_position, last.type,
           last.recorded_at
      FROM found,
           LATERAL (SELECT e.stream_position, e.type
                      FROM eventstore.events AS e
                     WHERE e.tenant = _tenant AND e.stream = found.stream
                     ORDER BY e.stream_position
                     LIMIT 1) AS first,
           LATERAL (SELECT e.stream_position, e.type, e.recorded_at
                      FROM eventstore.events AS e
                     WHERE e.tenant = _tenant AND e.stream = found.stream
                     ORDER BY e.stream_position DESC
                     LIMIT 1) AS last
     ORDER BY found.stream
$$;
