-- Appends that hold a bounded number of locks. The server's lock table is shared by all sessions and
-- has room for some thousands; a transaction that imports would fill it alone.
--
-- A transaction takes 500 locks of streams, keys and tags at most (eventstore.locks counts them):
--
-- Streams and keys: from then on none. Their unique indexes keep two writers of one version or key
-- apart; a writer that meets one that is under way waits at the index and is refused with a unique
-- violation, which the store takes for contention, instead of waiting for its turn.
--
-- Tags: a writer that decides by a tag must see every event of it that has a lower position than its own, and
-- no index keeps that. An append whose tags would go beyond the bound takes one lock for all of them
-- alone, 1749239. A decider shares it; a writer of a few tags does not take it at all, because
-- writers of a tag never wait for each other. It is taken last: its holder waits for no stream,
-- key or tag of the same statement.

CREATE OR REPLACE FUNCTION eventstore.append_event(
    _tenant text, _stream text, _expected bigint,
    _type text, _schema_version smallint, _event_id uuid, _data json, _metadata json,
    _occurred_at timestamptz, _correlation_id text, _causation_id text, _actor text
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    _transaction text := pg_current_xact_id()::text;
    _locks integer := coalesce(nullif(current_setting('eventstore.locks', true), ''), '0');
    _version bigint;
    _position bigint;
    _done boolean;
BEGIN
    -- writers of one stream take turns; what the one before committed is seen below
    IF _locks < 500 THEN
        _done := pg_advisory_xact_lock(1749232, hashtext(_tenant || '/' || _stream)) IS NULL;
        _done := set_config('eventstore.locks', (_locks + 1)::text, true) IS NULL;
    END IF;
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

CREATE OR REPLACE FUNCTION eventstore.append_events(
    _tenant text, _stream text, _expected bigint,
    _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[],
    _occurred_at timestamptz[], _correlation_id text, _causation_id text, _actor text
) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    _version bigint;
    _done boolean;
BEGIN
    PERFORM eventstore.lock_append(_tenant, NULL, ARRAY[_stream], '{}', '{}');
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

-- Takes the locks of an append in one order for all, so that no two wait for each other.
-- Writers of a tag share its lock; who decides by a tag takes it alone.
CREATE OR REPLACE FUNCTION eventstore.lock_append(
    _tenant text, _key text, _streams text[], _written_tags text[], _decided_tags text[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    _locks integer := coalesce(nullif(current_setting('eventstore.locks', true), ''), '0');
    -- read before this statement takes any: what is held is held to the end of the transaction
    _full boolean := _locks >= 500;
    _all_tags boolean := cardinality(_written_tags) > 0
        AND _locks + cardinality(_streams) + cardinality(_written_tags) > 500;
    _wanted record;
    _done boolean;
BEGIN
    FOR _wanted IN
        SELECT class, hashtext(_tenant || '/' || name) AS key, bool_or(alone) AS alone
          FROM (SELECT 1749234 AS class, _key AS name, true AS alone
                 WHERE _key IS NOT NULL AND NOT _full
                UNION ALL SELECT 1749232, unnest(_streams), true WHERE NOT _full
                UNION ALL SELECT 1749233, unnest(_written_tags), false WHERE NOT _all_tags
                UNION ALL SELECT 1749233, unnest(_decided_tags), true) AS wanted
         GROUP BY 1, 2
         ORDER BY class = 1749234 DESC, 1, 2
    LOOP
        IF _wanted.alone THEN
            _done := pg_advisory_xact_lock(_wanted.class, _wanted.key) IS NULL;
        ELSE
            _done := pg_advisory_xact_lock_shared(_wanted.class, _wanted.key) IS NULL;
        END IF;
        _locks := _locks + 1;
    END LOOP;
    IF _all_tags THEN
        _done := pg_advisory_xact_lock(1749239, 1) IS NULL;
    ELSIF cardinality(_decided_tags) > 0 THEN
        _done := pg_advisory_xact_lock_shared(1749239, 1) IS NULL;
    END IF;
    _done := set_config('eventstore.locks', _locks::text, true) IS NULL;
END
$$;
