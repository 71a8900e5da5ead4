-- Appends. Each answers instead of raising, so that a refused append leaves the caller's own
-- transaction usable. Expected versions: -1 any, -2 the stream exists, else exactly this one.

-- Position of a stream's last event; 0 if there is none.
CREATE FUNCTION eventstore.stream_version(_tenant text, _stream text) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(
        (SELECT stream_position
           FROM eventstore.events
          WHERE tenant = _tenant AND stream = _stream
          ORDER BY stream_position DESC
          LIMIT 1), 0)
$$;

-- An event that was archived is known by its id, too; the unique index does not see that table.
CREATE FUNCTION eventstore.refuse_archived(_tenant text, _event_ids uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM eventstore.archived_events
                WHERE tenant = _tenant AND event_id = ANY (_event_ids)) THEN
        RAISE unique_violation USING CONSTRAINT = 'uq_events_event_id',
            MESSAGE = 'an event with this id is archived';
    END IF;
END
$$;

-- One event to one stream, the usual case.
-- Returns {global position, version, transaction}, or {0, actual version}.
CREATE FUNCTION eventstore.append_event(
    _tenant text, _stream text, _expected bigint,
    _type text, _schema_version smallint, _event_id uuid, _data json, _metadata json,
    _occurred_at timestamptz, _correlation_id text, _causation_id text, _actor text
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    _transaction text := pg_current_xact_id()::text;
    _version bigint;
    _position bigint;
    _done boolean;
BEGIN
    -- writers of one stream take turns; what the one before committed is seen below
    _done := pg_advisory_xact_lock(1749232, hashtext(_tenant || '/' || _stream)) IS NULL;
    IF current_setting('eventstore.tenant', true) IS DISTINCT FROM _tenant THEN
        _done := set_config('eventstore.tenant', _tenant, true) IS NULL;
    END IF;
    _version := (SELECT stream_position
                   FROM eventstore.events
                  WHERE tenant = _tenant AND stream = _stream
                  ORDER BY stream_position DESC
                  LIMIT 1);
    _version := coalesce(_version, 0);
    IF _expected <> _version AND _expected <> -1 AND NOT (_expected = -2 AND _version > 0) THEN
        RETURN ARRAY[0, _version];
    END IF;
    PERFORM eventstore.refuse_archived(_tenant, ARRAY[_event_id]);
    -- hold_mark(), written out: a call would cost a tenth of the whole
    IF current_setting('eventstore.holding', true) IS DISTINCT FROM _transaction THEN
        _done := pg_advisory_xact_lock_shared(1749231,
            (coalesce(pg_sequence_last_value('eventstore.global_position'), 0) & 2147483647)::integer
        ) IS NULL;
        _done := set_config('eventstore.holding', _transaction, true) IS NULL;
    END IF;
    _position := nextval('eventstore.global_position');
    INSERT INTO eventstore.events (
        global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
        metadata, correlation_id, causation_id, actor, occurred_at)
    VALUES (
        _position, _tenant, _stream, _version + 1, _type, _schema_version, _event_id, _data,
        _metadata, _correlation_id, _causation_id, _actor, _occurred_at);
    -- wake_if_wanted(), written out as well
    IF pg_sequence_last_value('eventstore.wake_wanted') = 1 THEN
        PERFORM eventstore.wake();
    END IF;
    RETURN ARRAY[_position, _version + 1, _transaction::bigint];
END
$$;

-- Several events to one stream; same answer.
CREATE FUNCTION eventstore.append_events(
    _tenant text, _stream text, _expected bigint,
    _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[],
    _occurred_at timestamptz[], _correlation_id text, _causation_id text, _actor text
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    _version bigint;
    _done boolean;
BEGIN
    _done := pg_advisory_xact_lock(1749232, hashtext(_tenant || '/' || _stream)) IS NULL;
    _done := set_config('eventstore.tenant', _tenant, true) IS NULL;
    _version := eventstore.stream_version(_tenant, _stream);
    IF _expected <> _version AND _expected <> -1 AND NOT (_expected = -2 AND _version > 0) THEN
        RETURN ARRAY[0, _version];
    END IF;
    PERFORM eventstore.refuse_archived(_tenant, _event_ids);
    PERFORM eventstore.hold_mark();
    INSERT INTO eventstore.events (
        global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
        metadata, correlation_id, causation_id, actor, occurred_at)
    SELECT nextval('eventstore.global_position'), _tenant, _stream, _version + place, type,
           schema_version, event_id, data::json, metadata::json, _correlation_id, _causation_id,
           _actor, occurred_at
      FROM unnest(_types, _schema_versions, _event_ids, _data, _metadata, _occurred_at)
           WITH ORDINALITY
           AS e(type, schema_version, event_id, data, metadata, occurred_at, place);
    PERFORM eventstore.wake_if_wanted();
    RETURN ARRAY[currval('eventstore.global_position'), _version + cardinality(_types),
                 pg_current_xact_id()::text::bigint];
END
$$;

CREATE TYPE eventstore.append_result AS (
    -- appended, repeated, key_conflict, condition_failed, wrong_version
    outcome text,
    versions bigint[],
    global_position bigint,
    transaction_id bigint,
    -- of wrong_version: which stream, counted from 1, and where it is
    stream_number integer,
    actual_version bigint
);

-- Whether an event that a query means is in the log after a position.
-- The query: [{"types": [...], "tags": [...]}, ...]; no types means every type.
CREATE FUNCTION eventstore.any_after(_tenant text, _query json, _after bigint) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (
        SELECT FROM json_to_recordset(_query) AS item(types text[], tags text[])
         WHERE EXISTS (
            SELECT FROM eventstore.event_tags AS found
              JOIN eventstore.log AS event USING (global_position)
             WHERE found.tenant = _tenant
               AND found.tag = item.tags[1]
               AND found.global_position > _after
               AND event.tags @> item.tags
               AND (item.types = '{}' OR event.type = ANY (item.types))))
$$;

-- Takes the locks of an append in one order for all, so that no two wait for each other.
-- Writers of a tag share its lock; who decides by a tag takes it alone.
CREATE FUNCTION eventstore.lock_append(
    _tenant text, _key text, _streams text[], _written_tags text[], _decided_tags text[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    _wanted record;
    _done boolean;
BEGIN
    FOR _wanted IN
        SELECT class, hashtext(_tenant || '/' || name) AS key, bool_or(alone) AS alone
          FROM (SELECT 1749234 AS class, _key AS name, true AS alone WHERE _key IS NOT NULL
                UNION ALL SELECT 1749232, unnest(_streams), true
                UNION ALL SELECT 1749233, unnest(_written_tags), false
                UNION ALL SELECT 1749233, unnest(_decided_tags), true) AS wanted
         GROUP BY 1, 2
         ORDER BY class = 1749234 DESC, 1, 2
    LOOP
        IF _wanted.alone THEN
            _done := pg_advisory_xact_lock(_wanted.class, _wanted.key) IS NULL;
        ELSE
            _done := pg_advisory_xact_lock_shared(_wanted.class, _wanted.key) IS NULL;
        END IF;
    END LOOP;
END
$$;

-- Everything at once: several streams, tags, an idempotency key, a condition, an outbox.
-- The events lie in the order of their streams; _counts says how many belong to each.
CREATE FUNCTION eventstore.append(
    _tenant text, _streams text[], _expected bigint[], _counts integer[],
    _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[],
    _tags text[], _occurred_at timestamptz[], _correlation_id text, _causation_id text, _actor text,
    _key text, _digest bytea, _condition json, _after bigint, _outbox json
) RETURNS eventstore.append_result
LANGUAGE plpgsql AS $$
DECLARE
    _answer eventstore.append_result;
    _known eventstore.idempotency_keys;
    _bases bigint[] := '{}';
    _base bigint;
BEGIN
    PERFORM set_config('eventstore.tenant', _tenant, true);
    PERFORM eventstore.lock_append(_tenant, _key, _streams,
        ARRAY(SELECT DISTINCT unnest(tags::text[]) FROM unnest(_tags) AS t(tags)),
        ARRAY(SELECT item.tags[1] FROM json_to_recordset(_condition) AS item(tags text[])));

    -- the key answers first, whatever the expected versions say
    IF _key IS NOT NULL THEN
        SELECT * INTO _known FROM eventstore.idempotency_keys WHERE tenant = _tenant AND key = _key;
        IF FOUND THEN
            _answer.outcome := CASE WHEN _known.digest = _digest THEN 'repeated' ELSE 'key_conflict' END;
            _answer.versions := _known.versions;
            _answer.global_position := _known.global_position;
            _answer.transaction_id := _known.transaction_id;
            RETURN _answer;
        END IF;
    END IF;

    IF _condition IS NOT NULL AND eventstore.any_after(_tenant, _condition, _after) THEN
        _answer.outcome := 'condition_failed';
        RETURN _answer;
    END IF;

    FOR n IN 1 .. cardinality(_streams) LOOP
        _base := eventstore.stream_version(_tenant, _streams[n]);
        IF _expected[n] <> _base AND _expected[n] <> -1 AND NOT (_expected[n] = -2 AND _base > 0) THEN
            _answer.outcome := 'wrong_version';
            _answer.stream_number := n;
            _answer.actual_version := _base;
            RETURN _answer;
        END IF;
        _bases := _bases || _base;
        _answer.versions := _answer.versions || (_base + _counts[n]);
    END LOOP;

    PERFORM eventstore.refuse_archived(_tenant, _event_ids);
    PERFORM eventstore.hold_mark();
    _answer.outcome := 'appended';
    _answer.transaction_id := pg_current_xact_id()::text::bigint;
    _answer.global_position := eventstore.insert_events(_tenant, _streams, _bases, _counts, _types,
        _schema_versions, _event_ids, _data, _metadata, _tags, _occurred_at, _correlation_id,
        _causation_id, _actor);

    PERFORM eventstore.wake_if_wanted();
    IF _outbox IS NOT NULL THEN
        PERFORM eventstore.send(_tenant, _outbox, _correlation_id);
    END IF;
    IF _key IS NOT NULL THEN
        INSERT INTO eventstore.idempotency_keys
            (tenant, key, digest, versions, global_position, transaction_id)
        VALUES (_tenant, _key, _digest, _answer.versions, _answer.global_position,
                _answer.transaction_id);
    END IF;
    RETURN _answer;
END
$$;

-- Inserts events whose places are known; returns the last global position.
CREATE FUNCTION eventstore.insert_events(
    _tenant text, _streams text[], _bases bigint[], _counts integer[],
    _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[],
    _tags text[], _occurred_at timestamptz[], _correlation_id text, _causation_id text, _actor text
) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(_types) = 0 THEN  -- a key for a command that changed nothing
        RETURN eventstore.head();
    END IF;
    WITH places AS (
        SELECT row_number() OVER (ORDER BY n, k) AS place, _streams[n] AS stream, _bases[n] + k AS stream_position
          FROM generate_series(1, cardinality(_streams)) AS n,
               LATERAL generate_series(1, _counts[n]) AS k
    ), inserted AS (
        INSERT INTO eventstore.events (
            global_position, tenant, stream, stream_position, type, schema_version, event_id, data,
            metadata, tags, correlation_id, causation_id, actor, occurred_at)
        SELECT nextval('eventstore.global_position'), _tenant, stream, stream_position, type,
               schema_version, event_id, data::json, metadata::json, tags::text[], _correlation_id,
               _causation_id, _actor, occurred_at
          FROM (SELECT * FROM unnest(_types, _schema_versions, _event_ids, _data, _metadata, _tags,
                                     _occurred_at) WITH ORDINALITY
                       AS e(type, schema_version, event_id, data, metadata, tags, occurred_at, place)
                  JOIN places USING (place)
                 ORDER BY place) AS ordered
        RETURNING global_position, tags
    )
    INSERT INTO eventstore.event_tags (tenant, tag, global_position)
    SELECT _tenant, unnest(tags), global_position FROM inserted WHERE tags IS NOT NULL;
    RETURN currval('eventstore.global_position');
END
$$;

-- What a decision across streams depends on. It waits for writers of the same tags, who draw
-- their positions under the tag's lock: so whatever comes later has a greater position than
-- everything that is returned, and the greatest of them is what to append after.
CREATE FUNCTION eventstore.read_boundary(_tenant text, _query json) RETURNS SETOF eventstore.events
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('eventstore.tenant', _tenant, true);
    PERFORM eventstore.lock_append(_tenant, NULL, '{}', '{}',
        ARRAY(SELECT item.tags[1] FROM json_to_recordset(_query) AS item(tags text[])));
    RETURN QUERY
    SELECT event.*
      FROM eventstore.log AS event
     WHERE event.global_position IN (
            SELECT found.global_position
              FROM json_to_recordset(_query) AS item(types text[], tags text[])
              JOIN eventstore.event_tags AS found
                ON found.tenant = _tenant AND found.tag = item.tags[1]
              JOIN eventstore.log AS candidate USING (global_position)
             WHERE candidate.tags @> item.tags
               AND (item.types = '{}' OR candidate.type = ANY (item.types)))
     ORDER BY event.global_position;
END
$$;
