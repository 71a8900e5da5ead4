-- Reactors: subscriptions whose handler asks for effects on the outside. The row of partition 0,
-- which no repartitioning removes, says what holds for all partitions.
ALTER TABLE eventstore.subscriptions
    ADD COLUMN reactor boolean NOT NULL DEFAULT false,
    ADD COLUMN paused_at timestamptz,          -- an operator has paused it
    ADD COLUMN breaker_opened_at timestamptz,  -- its dependency is away since then
    ADD COLUMN breaker_error text;             -- class of the error that said so

-- Pauses a reactor or lets it go on. The batches under way end first, so after a pause nothing is
-- done until it is resumed.
CREATE FUNCTION eventstore.pause_reactor(_tenant text, _name text, _pause boolean) RETURNS text
LANGUAGE plpgsql AS $$
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
