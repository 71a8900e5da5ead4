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

CREATE SCHEMA eventstore;

CREATE SCHEMA eventstore_keys;

CREATE SCHEMA headwater_migrations;

CREATE TYPE eventstore.append_result AS (
	outcome text,
	versions bigint[],
	global_position bigint,
	transaction_id bigint,
	stream_number integer,
	actual_version bigint
);

CREATE FUNCTION eventstore.any_after(_tenant text, _query json, _after bigint) RETURNS boolean
    LANGUAGE sql
    AS $$
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

CREATE FUNCTION eventstore.append(_tenant text, _streams text[], _expected bigint[], _counts integer[], _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[], _tags text[], _occurred_at timestamp with time zone[], _correlation_id text, _causation_id text, _actor text, _key text, _digest bytea, _condition json, _after bigint, _outbox json) RETURNS eventstore.append_result
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.append_event(_tenant text, _stream text, _expected bigint, _type text, _schema_version smallint, _event_id uuid, _data json, _metadata json, _occurred_at timestamp with time zone, _correlation_id text, _causation_id text, _actor text) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.append_events(_tenant text, _stream text, _expected bigint, _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[], _occurred_at timestamp with time zone[], _correlation_id text, _causation_id text, _actor text) RETURNS bigint[]
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.claim_partitions(_tenant text, _name text) RETURNS integer[]
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.compact(_tenant text, _stream text, _begins_with uuid, _through bigint, _event_id uuid, _data json) RETURNS boolean
    LANGUAGE plpgsql
    AS $_$
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
$_$;

CREATE FUNCTION eventstore.current_tenant() RETURNS text
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT coalesce(
        (SELECT tenant FROM eventstore.tenant_roles WHERE role = session_user),
        current_setting('eventstore.tenant', true))
$$;

CREATE FUNCTION eventstore.declare_subscription(_tenant text, _name text, _partitions integer, _start bigint, _silent_to_end boolean) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.delivered_before(_earlier json, _tenant text, _stream text, _global_position bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT EXISTS (
        SELECT FROM json_array_elements(_earlier) AS former(positions)
         WHERE _global_position <= (positions ->> eventstore.partition_of(
                   _tenant, _stream, json_array_length(positions)))::bigint)
$$;

CREATE FUNCTION eventstore.drop_archived(_tenant text, _stream text, _through bigint) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.drop_parked(_tenant text, _name text, _stream text, _all boolean) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.grant_subscriptions(_role name) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON eventstore.subscriptions, '
                   'eventstore.parked_events, eventstore.processes, eventstore.process_inputs, '
                   'eventstore.timers TO %I', _role);
    EXECUTE format('GRANT SELECT ON eventstore.partition_owners TO %I', _role);
END
$$;

CREATE FUNCTION eventstore.grant_use(_role name) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA eventstore TO %I', _role);
    EXECUTE format('GRANT USAGE, SELECT ON SEQUENCE eventstore.global_position TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT ON eventstore.events, eventstore.event_tags, '
                   'eventstore.idempotency_keys TO %I', _role);
    EXECUTE format('GRANT SELECT ON eventstore.archived_events, eventstore.log, '
                   'eventstore.writers_under_way TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON eventstore.snapshots TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT, DELETE ON eventstore.outbox TO %I', _role);
END
$$;

CREATE FUNCTION eventstore.head() RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT coalesce(pg_sequence_last_value('eventstore.global_position'), 0)
$$;

CREATE FUNCTION eventstore.high_water_mark() RETURNS bigint
    LANGUAGE plpgsql
    AS $$
DECLARE
    _head bigint;
    _floor bigint;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'a standby does not know which writers are under way'
            USING ERRCODE = 'HWE02', HINT = 'read the log at the primary';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- its snapshot may be older than the mark, and would miss what came between
        RAISE EXCEPTION 'the log is read at isolation level read committed'
            USING ERRCODE = 'HWE02', HINT = 'read it on a connection of its own';
    END IF;
    _head := coalesce(pg_sequence_last_value('eventstore.global_position'), 0);
    -- Keys are floors modulo 2^31. One that was taken after the sequence was looked at is above the
    -- head, and so is whatever its writer will draw: it holds nothing back.
    -- Of what pg_locks shows, locks on tables may be older than the others: a writer whose lock on
    -- the table it does not show yet has taken its floor after the sequence was looked at, too.
    WITH seen AS MATERIALIZED (
        SELECT locktype, virtualtransaction, objid,
               locktype = 'relation' AND relation = 'eventstore.events'::regclass AS reads,
               locktype = 'advisory' AND classid = 1749231 AND objsubid = 2 AS holds
          FROM pg_locks
         WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
    )
    SELECT min(_head - distance) INTO _floor
      FROM (SELECT (_head - objid::bigint) & 2147483647 AS distance
              FROM seen
             WHERE holds AND virtualtransaction IN (
                SELECT virtualtransaction FROM seen WHERE reads)
           ) AS floors
     WHERE distance < 1073741824;
    RETURN least(_head, _floor);
END
$$;

CREATE FUNCTION eventstore.hold_mark() RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    _transaction text := pg_current_xact_id()::text;
    _done boolean;
BEGIN
    IF current_setting('eventstore.holding', true) IS DISTINCT FROM _transaction THEN
        PERFORM FROM eventstore.events WHERE false;  -- its lock on the table comes first
        _done := pg_advisory_xact_lock_shared(1749231,
            (coalesce(pg_sequence_last_value('eventstore.global_position'), 0) & 2147483647)::integer
        ) IS NULL;
        -- once is enough; a rolled back savepoint takes back both the lock and this note of it
        _transaction := set_config('eventstore.holding', _transaction, true);
    END IF;
END
$$;

CREATE FUNCTION eventstore.hold_to_tenant(_table regclass) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', _table);
    EXECUTE format('CREATE POLICY tenant ON %s USING (tenant = (SELECT eventstore.current_tenant()))',
                   _table);
END
$$;

CREATE FUNCTION eventstore.insert_events(_tenant text, _streams text[], _bases bigint[], _counts integer[], _types text[], _schema_versions smallint[], _event_ids uuid[], _data text[], _metadata text[], _tags text[], _occurred_at timestamp with time zone[], _correlation_id text, _causation_id text, _actor text) RETURNS bigint
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.join_subscription(_tenant text, _name text, _partitions integer) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.lock_append(_tenant text, _key text, _streams text[], _written_tags text[], _decided_tags text[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.partition_of(_tenant text, _stream text, _partitions integer) RETURNS integer
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT (('x' || encode(substring(sha256(convert_to(_tenant || '/' || _stream, 'UTF8'))
                                     FROM 1 FOR 7), 'hex'))::bit(56)::bigint % _partitions)::integer
$$;

CREATE FUNCTION eventstore.pause_reactor(_tenant text, _name text, _pause boolean) RETURNS text
    LANGUAGE plpgsql
    AS $$
BEGIN
    PERFORM FROM eventstore.subscriptions
      WHERE tenant = _tenant AND name = _name ORDER BY partition FOR UPDATE;
    UPDATE eventstore.subscriptions
       SET paused_at = CASE WHEN _pause THEN coalesce(paused_at, clock_timestamp()) END
     WHERE tenant = _tenant AND name = _name AND partition = 0 AND reactor;
    IF NOT FOUND THEN
        RETURN 'no reactor';
    END IF;
    PERFORM pg_notify('eventstore', '');
    RETURN 'done';
END
$$;

CREATE FUNCTION eventstore.promote_parked(_tenant text, _name text, _stream text) RETURNS void
    LANGUAGE sql
    AS $$
    UPDATE eventstore.parked_events
       SET state = 'retrying', retry_at = clock_timestamp()
     WHERE tenant = _tenant AND subscription = _name AND stream = _stream
       AND global_position = (SELECT min(global_position)
                                FROM eventstore.parked_events
                               WHERE tenant = _tenant AND subscription = _name
                                 AND stream = _stream)
$$;

SET default_tablespace = '';

SET default_table_access_method = heap;

CREATE TABLE eventstore.events (
    global_position bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    stream text NOT NULL COLLATE pg_catalog."C",
    stream_position bigint NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    schema_version smallint NOT NULL,
    event_id uuid NOT NULL,
    data json NOT NULL,
    metadata json,
    tags text[],
    correlation_id text,
    causation_id text,
    actor text,
    occurred_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_events_schema_version CHECK ((schema_version >= 1)),
    CONSTRAINT ck_events_stream_position CHECK ((stream_position >= 1))
);

CREATE FUNCTION eventstore.read_boundary(_tenant text, _query json) RETURNS SETOF eventstore.events
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.record_compaction(_action text, _tenant text, _stream text, _first bigint, _through bigint, _global_position bigint, _positions bigint[], _digest bytea) RETURNS void
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.refuse_archived(_tenant text, _event_ids uuid[]) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM eventstore.archived_events
                WHERE tenant = _tenant AND event_id = ANY (_event_ids)) THEN
        RAISE unique_violation USING CONSTRAINT = 'uq_events_event_id',
            MESSAGE = 'an event with this id is archived';
    END IF;
END
$$;

CREATE FUNCTION eventstore.refuse_change() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF coalesce(current_setting('eventstore.compacting', true), '') <> 'on' THEN
        RAISE EXCEPTION 'events are facts: % of %.% is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
            USING ERRCODE = 'HWE01',
                  HINT = 'append an event that corrects it, or compact the stream';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION eventstore.refuse_change_of_message() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'a message is sent once: % of %.% is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'HWE01', HINT = 'insert another message';
END
$$;

CREATE FUNCTION eventstore.remove_subscription(_tenant text, _name text) RETURNS text
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.repartition_subscription(_tenant text, _name text, _partitions integer) RETURNS text
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.replay_subscription(_tenant text, _name text, _from bigint, _through bigint) RETURNS text
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.retry_parked(_tenant text, _name text, _stream text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.send(_tenant text, _messages json, _correlation_id text) RETURNS void
    LANGUAGE sql
    AS $$
    INSERT INTO eventstore.outbox
        (message_id, tenant, topic, stream, type, version, payload, correlation_id)
    SELECT (message ->> 'message_id')::uuid, _tenant, message ->> 'topic',
           convert_to(message ->> 'stream', 'UTF8'), message ->> 'type',
           (message ->> 'version')::integer, convert_to(message ->> 'payload', 'UTF8'),
           _correlation_id
      FROM json_array_elements(_messages) WITH ORDINALITY AS m(message, place)
     ORDER BY place;
    DELETE FROM eventstore.outbox
     WHERE message_id IN (SELECT (m ->> 'message_id')::uuid FROM json_array_elements(_messages) AS m);
$$;

CREATE FUNCTION eventstore.stream_version(_tenant text, _stream text) RETURNS bigint
    LANGUAGE sql
    AS $$
    SELECT coalesce(
        (SELECT stream_position
           FROM eventstore.events
          WHERE tenant = _tenant AND stream = _stream
          ORDER BY stream_position DESC
          LIMIT 1), 0)
$$;

CREATE FUNCTION eventstore.streams_of(_tenant text, _category text, _after text, _limit integer) RETURNS TABLE(stream text, first_position bigint, first_type text, head bigint, last_type text, last_recorded_at timestamp with time zone)
    LANGUAGE sql STABLE
    AS $$
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

CREATE FUNCTION eventstore.transactions_before(_tenant text, _stream text, _position bigint) RETURNS text[]
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION eventstore.wake() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM setval('eventstore.wake_wanted', 0);
    PERFORM pg_notify('eventstore', '');
END
$$;

CREATE FUNCTION eventstore.wake_if_wanted() RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF pg_sequence_last_value('eventstore.wake_wanted') = 1 THEN
        PERFORM eventstore.wake();
    END IF;
END
$$;

CREATE FUNCTION eventstore.want_wake() RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM setval('eventstore.wake_wanted', 1);
    RETURN eventstore.head();
END
$$;

CREATE FUNCTION eventstore_keys.grant_use(_role name) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA eventstore, eventstore_keys TO %I', _role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON eventstore_keys.subject_keys TO %I', _role);
END
$$;

CREATE FUNCTION eventstore_keys.shred(_tenant text, _subject text) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF has_schema_privilege('eventstore', 'USAGE')
       AND has_table_privilege('eventstore.snapshots', 'DELETE') THEN
        DELETE FROM eventstore.snapshots WHERE tenant = _tenant AND _subject = ANY (subjects);
    END IF;
    INSERT INTO eventstore_keys.subject_keys (tenant, subject, shredded_at)
    VALUES (_tenant, _subject, clock_timestamp())
    ON CONFLICT (tenant, subject) DO NOTHING;
    UPDATE eventstore_keys.subject_keys
       SET wrapped_key = NULL, master_key_id = NULL, shredded_at = clock_timestamp()
     WHERE tenant = _tenant AND subject = _subject AND wrapped_key IS NOT NULL;
    RETURN FOUND;
END
$$;

CREATE TABLE eventstore.archived_events (
    global_position bigint NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    stream text NOT NULL COLLATE pg_catalog."C",
    stream_position bigint NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    schema_version smallint NOT NULL,
    event_id uuid NOT NULL,
    data json NOT NULL,
    metadata json,
    tags text[],
    correlation_id text,
    causation_id text,
    actor text,
    occurred_at timestamp with time zone NOT NULL,
    recorded_at timestamp with time zone NOT NULL
);

ALTER TABLE ONLY eventstore.archived_events REPLICA IDENTITY FULL;

CREATE TABLE eventstore.compactions (
    number bigint NOT NULL,
    action text NOT NULL COLLATE pg_catalog."C",
    tenant text NOT NULL COLLATE pg_catalog."C",
    stream text NOT NULL COLLATE pg_catalog."C",
    first_position bigint NOT NULL,
    through_position bigint NOT NULL,
    global_position bigint NOT NULL,
    positions bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    digest bytea NOT NULL,
    recorded_at timestamp with time zone NOT NULL,
    hash bytea NOT NULL,
    CONSTRAINT ck_compactions_action CHECK ((action = ANY (ARRAY['compacted'::text, 'dropped'::text]))),
    CONSTRAINT ck_compactions_digest CHECK ((octet_length(digest) = 32)),
    CONSTRAINT ck_compactions_hash CHECK ((octet_length(hash) = 32)),
    CONSTRAINT ck_compactions_positions CHECK (((action = 'dropped'::text) = (cardinality(positions) > 0))),
    CONSTRAINT ck_compactions_range CHECK (((1 <= first_position) AND (first_position <= through_position)))
);

CREATE TABLE eventstore.event_tags (
    tenant text NOT NULL COLLATE pg_catalog."C",
    tag text NOT NULL COLLATE pg_catalog."C",
    global_position bigint NOT NULL
);

CREATE SEQUENCE eventstore.global_position
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE eventstore.idempotency_keys (
    tenant text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    digest bytea NOT NULL,
    versions bigint[] NOT NULL,
    global_position bigint NOT NULL,
    transaction_id bigint NOT NULL,
    recorded_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_idempotency_keys_digest CHECK ((octet_length(digest) = 32))
);

CREATE VIEW eventstore.log WITH (security_invoker='true') AS
 SELECT events.global_position,
    events.tenant,
    events.stream,
    events.stream_position,
    events.type,
    events.schema_version,
    events.event_id,
    events.data,
    events.metadata,
    events.tags,
    events.correlation_id,
    events.causation_id,
    events.actor,
    events.occurred_at,
    events.recorded_at
   FROM eventstore.events
  WHERE (events.type <> '$snapshot'::text)
UNION ALL
 SELECT archived_events.global_position,
    archived_events.tenant,
    archived_events.stream,
    archived_events.stream_position,
    archived_events.type,
    archived_events.schema_version,
    archived_events.event_id,
    archived_events.data,
    archived_events.metadata,
    archived_events.tags,
    archived_events.correlation_id,
    archived_events.causation_id,
    archived_events.actor,
    archived_events.occurred_at,
    archived_events.recorded_at
   FROM eventstore.archived_events;

CREATE TABLE eventstore.outbox (
    message_id uuid NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C",
    topic text NOT NULL COLLATE pg_catalog."C",
    stream bytea NOT NULL,
    type text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    payload bytea NOT NULL,
    correlation_id text,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_outbox_payload CHECK (((octet_length(payload) >= 1) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT ck_outbox_topic CHECK ((topic ~ '^[A-Za-z0-9_-]{1,128}$'::text))
);

CREATE TABLE eventstore.parked_events (
    tenant text NOT NULL COLLATE pg_catalog."C",
    subscription text NOT NULL COLLATE pg_catalog."C",
    stream text NOT NULL COLLATE pg_catalog."C",
    global_position bigint NOT NULL,
    state text NOT NULL,
    live boolean NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    error_code text,
    error_type text,
    retry_at timestamp with time zone,
    parked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    error_location text,
    CONSTRAINT ck_parked_events_retry_at CHECK (((state = 'retrying'::text) = (retry_at IS NOT NULL))),
    CONSTRAINT ck_parked_events_state CHECK ((state = ANY (ARRAY['retrying'::text, 'parked'::text, 'waiting'::text])))
);

CREATE TABLE eventstore.subscriptions (
    tenant text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    partition integer NOT NULL,
    partitions integer NOT NULL,
    lock_id integer NOT NULL,
    global_position bigint NOT NULL,
    replay_until bigint DEFAULT 0 NOT NULL,
    replay_through bigint,
    resume_at bigint,
    earlier json,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    tables text[] DEFAULT '{}'::text[] NOT NULL,
    reactor boolean DEFAULT false NOT NULL,
    paused_at timestamp with time zone,
    breaker_opened_at timestamp with time zone,
    breaker_error text,
    CONSTRAINT ck_subscriptions_global_position CHECK ((global_position >= 0)),
    CONSTRAINT ck_subscriptions_partition CHECK (((partition >= 0) AND (partition < partitions))),
    CONSTRAINT ck_subscriptions_replay CHECK (((replay_through IS NULL) = (resume_at IS NULL)))
);

CREATE VIEW eventstore.partition_owners WITH (security_invoker='true') AS
 SELECT s.tenant,
    s.name,
    s.partition,
    s.lock_id,
    l.pid AS owner
   FROM (eventstore.subscriptions s
     LEFT JOIN pg_locks l ON (((l.locktype = 'advisory'::text) AND (l.classid = (1749236)::oid) AND (l.objid = (s.lock_id)::oid) AND (l.objsubid = 2) AND l.granted AND (l.database = ( SELECT pg_database.oid
           FROM pg_database
          WHERE (pg_database.datname = current_database()))))));

CREATE TABLE eventstore.process_inputs (
    tenant text NOT NULL COLLATE pg_catalog."C",
    manager text NOT NULL COLLATE pg_catalog."C",
    process_id text NOT NULL COLLATE pg_catalog."C",
    number integer NOT NULL,
    kind text NOT NULL,
    global_position bigint,
    name text,
    reason text,
    at timestamp with time zone,
    taken_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT ck_process_inputs_kind CHECK (
CASE kind
    WHEN 'event'::text THEN (global_position IS NOT NULL)
    WHEN 'timeout'::text THEN ((name IS NOT NULL) AND (at IS NOT NULL))
    WHEN 'refusal'::text THEN ((name IS NOT NULL) AND (reason IS NOT NULL))
    ELSE false
END)
);

CREATE TABLE eventstore.processes (
    tenant text NOT NULL COLLATE pg_catalog."C",
    manager text NOT NULL COLLATE pg_catalog."C",
    process_id text NOT NULL COLLATE pg_catalog."C",
    inputs integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    completed_at timestamp with time zone
);

CREATE TABLE eventstore.seals (
    block bigint NOT NULL,
    after_position bigint NOT NULL,
    through_position bigint NOT NULL,
    event_total bigint NOT NULL,
    positions bigint[] NOT NULL,
    hashes bytea NOT NULL,
    sealed_at timestamp with time zone NOT NULL,
    digest bytea NOT NULL,
    CONSTRAINT ck_seals_block CHECK ((block >= 1)),
    CONSTRAINT ck_seals_digest CHECK ((octet_length(digest) = 32)),
    CONSTRAINT ck_seals_hashes CHECK ((octet_length(hashes) = (32 * cardinality(positions)))),
    CONSTRAINT ck_seals_positions CHECK (((cardinality(positions) >= 1) AND (cardinality(positions) <= 4096))),
    CONSTRAINT ck_seals_range CHECK ((after_position < through_position))
);
ALTER TABLE ONLY eventstore.seals ALTER COLUMN hashes SET STORAGE EXTERNAL;

CREATE TABLE eventstore.snapshots (
    tenant text NOT NULL COLLATE pg_catalog."C",
    stream text NOT NULL COLLATE pg_catalog."C",
    fold text NOT NULL COLLATE pg_catalog."C",
    stream_position bigint NOT NULL,
    state bytea NOT NULL,
    digest bytea NOT NULL,
    subjects text[] DEFAULT '{}'::text[] NOT NULL,
    taken_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE eventstore.subscriptions ALTER COLUMN lock_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME eventstore.subscriptions_lock_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE eventstore.tenant_roles (
    role name NOT NULL,
    tenant text NOT NULL COLLATE pg_catalog."C"
);

CREATE TABLE eventstore.timers (
    tenant text NOT NULL COLLATE pg_catalog."C",
    manager text NOT NULL COLLATE pg_catalog."C",
    process_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL COLLATE pg_catalog."C",
    due_at timestamp with time zone NOT NULL,
    fires_at timestamp with time zone NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    error_code text,
    error_type text,
    error_location text
);

CREATE UNLOGGED SEQUENCE eventstore.wake_wanted
    START WITH 0
    INCREMENT BY 1
    MINVALUE 0
    MAXVALUE 1
    CACHE 1;

CREATE VIEW eventstore.writers_under_way AS
 SELECT l.pid,
    COALESCE(a.usename, p.owner) AS role,
    a.application_name,
    COALESCE(a.state,
        CASE
            WHEN (p.gid IS NOT NULL) THEN 'prepared'::text
            ELSE NULL::text
        END) AS state,
    COALESCE(a.xact_start, p.prepared) AS started_at,
    p.gid,
        CASE
            WHEN (p.gid IS NOT NULL) THEN format('COMMIT PREPARED %L or ROLLBACK PREPARED %L'::text, p.gid, p.gid)
            WHEN (l.pid IS NOT NULL) THEN format('SELECT pg_terminate_backend(%s)'::text, l.pid)
            ELSE NULL::text
        END AS command
   FROM ((pg_locks l
     LEFT JOIN pg_stat_activity a USING (pid))
     LEFT JOIN ( SELECT own.virtualtransaction,
            x.gid,
            x.owner,
            x.prepared
           FROM (pg_prepared_xacts x
             JOIN pg_locks own ON (((own.pid IS NULL) AND (own.locktype = 'transactionid'::text) AND (own.transactionid = x.transaction))))) p ON (((l.pid IS NULL) AND (l.virtualtransaction = p.virtualtransaction))))
  WHERE ((l.locktype = 'advisory'::text) AND (l.classid = (1749231)::oid) AND (l.objsubid = 2) AND (l.database = ( SELECT pg_database.oid
           FROM pg_database
          WHERE (pg_database.datname = current_database()))) AND (EXISTS ( SELECT
           FROM pg_locks t
          WHERE ((t.locktype = 'relation'::text) AND (t.relation = ('eventstore.events'::regclass)::oid) AND (t.database = l.database) AND (t.virtualtransaction = l.virtualtransaction)))))
  ORDER BY COALESCE(a.xact_start, p.prepared);

CREATE TABLE eventstore_keys.subject_keys (
    tenant text NOT NULL COLLATE pg_catalog."C",
    subject text NOT NULL COLLATE pg_catalog."C",
    generation integer DEFAULT 1 NOT NULL,
    wrapped_key bytea,
    master_key_id text COLLATE pg_catalog."C",
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    shredded_at timestamp with time zone,
    CONSTRAINT ck_subject_keys_generation CHECK ((generation >= 1)),
    CONSTRAINT ck_subject_keys_shredded CHECK ((((wrapped_key IS NULL) = (shredded_at IS NOT NULL)) AND ((wrapped_key IS NULL) = (master_key_id IS NULL))))
);

CREATE TABLE headwater_migrations.alembic_version (
    version_num character varying(32) NOT NULL
);

INSERT INTO eventstore.archived_events (global_position, tenant, stream, stream_position, type, schema_version, event_id, data, metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at) VALUES (1000, 'default', 'order-1', 1000, 'order.placed', 1, 'd674ce1a-046c-4827-8c4a-3e17ae59e3f0', '{"total":7}', NULL, '{email:a}', NULL, NULL, NULL, '2026-11-28 14:08:43.599256+00', '2026-11-28 14:08:43.634916+00');

INSERT INTO eventstore.compactions (number, action, tenant, stream, first_position, through_position, global_position, positions, digest, recorded_at, hash) VALUES (1, 'compacted', 'default', 'order-1', 1, 1, 1000, '{}', '\xca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb', '2026-11-28 14:08:43.6417+00', '\x3e23e8160039594a33894f6564e1b1348bbd7a0088d42c4acb73eeaed59c009d');

INSERT INTO eventstore.event_tags (tenant, tag, global_position) VALUES ('default', 'email:a', 1);

INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type, schema_version, event_id, data, metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at) VALUES (1, 'default', 'order-1', 1, 'order.placed', 1, '01a2227c-a44f-7147-a0f8-a9d36c935e92', '{"total":7}', NULL, '{email:a}', NULL, NULL, NULL, '2026-11-28 14:08:43.599256+00', '2026-11-28 14:08:43.634916+00');
INSERT INTO eventstore.events (global_position, tenant, stream, stream_position, type, schema_version, event_id, data, metadata, tags, correlation_id, causation_id, actor, occurred_at, recorded_at) VALUES (2, 'default', 'order-1', 2, 'order.paid', 1, '01a2227c-a44f-7147-a0f8-a9d36c935e93', '{"by":"card"}', NULL, NULL, NULL, NULL, NULL, '2026-11-28 14:08:43.599306+00', '2026-11-28 14:08:43.635475+00');

INSERT INTO eventstore.idempotency_keys (tenant, key, digest, versions, global_position, transaction_id, recorded_at) VALUES ('default', 'k1', '\xc3a8a3a8961b1fda87277303710f45b968a24cc9d454ff9e4a48db1afbe977c8', '{2}', 2, 757, '2026-11-28 14:08:43.635802+00');

INSERT INTO eventstore.outbox (message_id, tenant, topic, stream, type, version, payload, correlation_id, occurred_at) VALUES ('35d2e71d-64fc-4b34-8ecb-ee74ae660403', 'default', 'orders', '\x6f726465722d31', 'order.placed', 1, '\x7b7d', NULL, '2026-11-28 14:08:43.647464+00');

INSERT INTO eventstore.parked_events (tenant, subscription, stream, global_position, state, live, attempts, error_code, error_type, retry_at, parked_at, error_location) VALUES ('default', 'mail', 'order-1', 1, 'parked', true, 5, 'HW-E050', 'builtins.KeyError', NULL, '2026-11-28 14:08:43.646029+00', 'mail.py:7');

INSERT INTO eventstore.process_inputs (tenant, manager, process_id, number, kind, global_position, name, reason, at, taken_at) VALUES ('default', 'mail', '7', 1, 'event', 1, NULL, NULL, NULL, '2026-11-28 14:08:43.646297+00');

INSERT INTO eventstore.processes (tenant, manager, process_id, inputs, started_at, completed_at) VALUES ('default', 'mail', '7', 1, '2026-11-28 14:08:43.646184+00', NULL);

INSERT INTO eventstore.seals (block, after_position, through_position, event_total, positions, hashes, sealed_at, digest) VALUES (1, 0, 1, 1, '{1}', '\x2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6', '2026-11-28 14:08:43.6417+00', '\x18ac3e7343f016890c510e93f935261169d9e3f565436429830faf0934f4f8e4');

INSERT INTO eventstore.snapshots (tenant, stream, fold, stream_position, state, digest, subjects, taken_at) VALUES ('default', 'order-1', 'f', 2, '\x7b7d', '\x3f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea', '{}', '2026-11-28 14:08:43.64677+00');

INSERT INTO eventstore.subscriptions (tenant, name, partition, partitions, lock_id, global_position, replay_until, replay_through, resume_at, earlier, updated_at, tables, reactor, paused_at, breaker_opened_at, breaker_error) OVERRIDING SYSTEM VALUE VALUES ('default', 'mail', 0, 2, 1, 0, 0, NULL, NULL, NULL, '2026-11-28 14:08:43.644945+00', '{}', false, NULL, NULL, NULL);
INSERT INTO eventstore.subscriptions (tenant, name, partition, partitions, lock_id, global_position, replay_until, replay_through, resume_at, earlier, updated_at, tables, reactor, paused_at, breaker_opened_at, breaker_error) OVERRIDING SYSTEM VALUE VALUES ('default', 'mail', 1, 2, 2, 0, 0, NULL, NULL, NULL, '2026-11-28 14:08:43.645069+00', '{}', false, NULL, NULL, NULL);

INSERT INTO eventstore.tenant_roles (role, tenant) VALUES ('shop', 'default');

INSERT INTO eventstore.timers (tenant, manager, process_id, name, due_at, fires_at, attempts, error_code, error_type, error_location) VALUES ('default', 'mail', '7', 'late', '2026-11-28 14:08:43.6417+00', 'infinity', 5, NULL, 'builtins.ValueError', 'mail.py:9');

INSERT INTO eventstore_keys.subject_keys (tenant, subject, generation, wrapped_key, master_key_id, created_at, shredded_at) VALUES ('default', 'ada', 1, '\x78', 'm1', '2026-11-28 14:08:43.646949+00', NULL);

INSERT INTO headwater_migrations.alembic_version (version_num) VALUES ('0006_reactors');

SELECT pg_catalog.setval('eventstore.global_position', 2, true);

SELECT pg_catalog.setval('eventstore.subscriptions_lock_id_seq', 2, true);

SELECT pg_catalog.setval('eventstore.wake_wanted', 0, false);

ALTER TABLE ONLY eventstore.archived_events
    ADD CONSTRAINT pk_archived_events PRIMARY KEY (global_position);

ALTER TABLE ONLY eventstore.compactions
    ADD CONSTRAINT pk_compactions PRIMARY KEY (number);

ALTER TABLE ONLY eventstore.event_tags
    ADD CONSTRAINT pk_event_tags PRIMARY KEY (tenant, tag, global_position);

ALTER TABLE ONLY eventstore.events
    ADD CONSTRAINT pk_events PRIMARY KEY (global_position);

ALTER TABLE ONLY eventstore.idempotency_keys
    ADD CONSTRAINT pk_idempotency_keys PRIMARY KEY (tenant, key);

ALTER TABLE ONLY eventstore.outbox
    ADD CONSTRAINT pk_outbox PRIMARY KEY (message_id);

ALTER TABLE ONLY eventstore.parked_events
    ADD CONSTRAINT pk_parked_events PRIMARY KEY (tenant, subscription, stream, global_position);

ALTER TABLE ONLY eventstore.process_inputs
    ADD CONSTRAINT pk_process_inputs PRIMARY KEY (tenant, manager, process_id, number);

ALTER TABLE ONLY eventstore.processes
    ADD CONSTRAINT pk_processes PRIMARY KEY (tenant, manager, process_id);

ALTER TABLE ONLY eventstore.seals
    ADD CONSTRAINT pk_seals PRIMARY KEY (block);

ALTER TABLE ONLY eventstore.snapshots
    ADD CONSTRAINT pk_snapshots PRIMARY KEY (tenant, stream, fold);

ALTER TABLE ONLY eventstore.subscriptions
    ADD CONSTRAINT pk_subscriptions PRIMARY KEY (tenant, name, partition);

ALTER TABLE ONLY eventstore.tenant_roles
    ADD CONSTRAINT pk_tenant_roles PRIMARY KEY (role);

ALTER TABLE ONLY eventstore.timers
    ADD CONSTRAINT pk_timers PRIMARY KEY (tenant, manager, process_id, name);

ALTER TABLE ONLY eventstore.archived_events
    ADD CONSTRAINT uq_archived_events_event_id UNIQUE (tenant, event_id);

ALTER TABLE ONLY eventstore.archived_events
    ADD CONSTRAINT uq_archived_events_stream_position UNIQUE (tenant, stream, stream_position);

ALTER TABLE ONLY eventstore.events
    ADD CONSTRAINT uq_events_event_id UNIQUE (tenant, event_id);

ALTER TABLE ONLY eventstore.events
    ADD CONSTRAINT uq_events_stream_position UNIQUE (tenant, stream, stream_position);

ALTER TABLE ONLY eventstore.seals
    ADD CONSTRAINT uq_seals_after_position UNIQUE (after_position);

ALTER TABLE ONLY eventstore.subscriptions
    ADD CONSTRAINT uq_subscriptions_lock_id UNIQUE (lock_id);

ALTER TABLE ONLY eventstore_keys.subject_keys
    ADD CONSTRAINT pk_subject_keys PRIMARY KEY (tenant, subject);

ALTER TABLE ONLY headwater_migrations.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);

CREATE INDEX ix_archived_events_category ON eventstore.archived_events USING btree (tenant, split_part(stream, '-'::text, 1), global_position);

CREATE INDEX ix_archived_events_tenant ON eventstore.archived_events USING btree (tenant, global_position);

CREATE INDEX ix_archived_events_type ON eventstore.archived_events USING btree (tenant, type, global_position);

CREATE INDEX ix_compactions_stream ON eventstore.compactions USING btree (tenant, stream, number);

CREATE INDEX ix_events_category ON eventstore.events USING btree (tenant, split_part(stream, '-'::text, 1), global_position);

CREATE INDEX ix_events_tenant ON eventstore.events USING btree (tenant, global_position);

CREATE INDEX ix_events_type ON eventstore.events USING btree (tenant, type, global_position);

CREATE INDEX ix_idempotency_keys_recorded_at ON eventstore.idempotency_keys USING btree (recorded_at);

CREATE INDEX ix_timers_fires_at ON eventstore.timers USING btree (tenant, manager, fires_at);

CREATE UNIQUE INDEX uq_parked_events_head ON eventstore.parked_events USING btree (tenant, subscription, stream) WHERE (state <> 'waiting'::text);

CREATE UNIQUE INDEX uq_process_inputs_event ON eventstore.process_inputs USING btree (tenant, manager, process_id, global_position) WHERE (global_position IS NOT NULL);

CREATE INDEX ix_subject_keys_master_key_id ON eventstore_keys.subject_keys USING btree (master_key_id, tenant, subject) WHERE (wrapped_key IS NOT NULL);

CREATE TRIGGER archived_events_are_facts BEFORE DELETE OR UPDATE OR TRUNCATE ON eventstore.archived_events FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();

CREATE TRIGGER compactions_are_facts BEFORE DELETE OR UPDATE OR TRUNCATE ON eventstore.compactions FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();

CREATE TRIGGER events_are_facts BEFORE DELETE OR UPDATE OR TRUNCATE ON eventstore.events FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();

CREATE TRIGGER messages_are_sent_once BEFORE UPDATE OR TRUNCATE ON eventstore.outbox FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change_of_message();

CREATE TRIGGER seals_are_facts BEFORE DELETE OR UPDATE OR TRUNCATE ON eventstore.seals FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();

ALTER TABLE eventstore.archived_events ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.compactions ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.event_tags ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.events ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.idempotency_keys ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.outbox ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.parked_events ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.process_inputs ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.processes ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.snapshots ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore.subscriptions ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant ON eventstore.archived_events USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.compactions USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.event_tags USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.events USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.idempotency_keys USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.outbox USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.parked_events USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.process_inputs USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.processes USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.snapshots USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.subscriptions USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

CREATE POLICY tenant ON eventstore.timers USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

ALTER TABLE eventstore.timers ENABLE ROW LEVEL SECURITY;

ALTER TABLE eventstore_keys.subject_keys ENABLE ROW LEVEL SECURITY;

CREATE POLICY tenant ON eventstore_keys.subject_keys USING ((tenant = ( SELECT eventstore.current_tenant() AS current_tenant)));

GRANT USAGE ON SCHEMA headwater_migrations TO PUBLIC;

GRANT SELECT ON SEQUENCE eventstore.wake_wanted TO PUBLIC;

GRANT SELECT ON TABLE headwater_migrations.alembic_version TO PUBLIC;
