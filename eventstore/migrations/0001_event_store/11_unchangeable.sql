-- An event is a fact. Only compaction, which says so in its transaction, may move one.
CREATE FUNCTION eventstore.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(current_setting('eventstore.compacting', true), '') <> 'on' THEN
        RAISE EXCEPTION 'events are facts: % of %.% is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME
            USING ERRCODE = 'HWE01',
                  HINT = 'append an event that corrects it, or compact the stream';
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER events_are_facts
    BEFORE UPDATE OR DELETE OR TRUNCATE ON eventstore.events
    FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();

CREATE TRIGGER archived_events_are_facts
    BEFORE UPDATE OR DELETE OR TRUNCATE ON eventstore.archived_events
    FOR EACH STATEMENT EXECUTE FUNCTION eventstore.refuse_change();
