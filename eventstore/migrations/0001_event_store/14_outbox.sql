-- Messages for others. A row is inserted and deleted in one transaction: the table stays empty,
-- the write-ahead log has the message, and Debezium's outbox router sends it.
--
-- Key and payload are bytes, because the router sends bytes as they are and text as JSON strings. A
-- topic that the broker refuses, or a payload beyond its limit, would stop the capture of
-- everything, so it is refused here.
CREATE TABLE eventstore.outbox (
    message_id uuid NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    stream bytea NOT NULL,
    type text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    payload bytea NOT NULL,
    correlation_id text,
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT pk_outbox PRIMARY KEY (message_id),
    -- no dots: names that differ by . and _ only are one name to the broker
    CONSTRAINT ck_outbox_topic CHECK (topic ~ '^[A-Za-z0-9_-]{1,128}$'),
    CONSTRAINT ck_outbox_payload CHECK (octet_length(payload) BETWEEN 1 AND 1048576)
);

-- Puts messages into the write-ahead log, in their order, and leaves no row behind.
CREATE FUNCTION eventstore.send(_tenant text, _messages json, _correlation_id text)
RETURNS void
LANGUAGE sql AS $$
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

-- The router takes an insert for a message and a delete for nothing. An update would be lost on
-- it, and a truncate would stop the capture.
CREATE FUNCTION eventstore.refuse_change_of_message() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a message is sent once: % of %.% is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'HWE01', HINT = 'insert another message';
END
$$;

CREATE TRIGGER messages_are_sent_once
    BEFORE UPDATE OR TRUNCATE ON eventstore.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change_of_message();
