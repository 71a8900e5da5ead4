-- Global order without a global lock.
--
-- Positions come from a sequence, so a later one may commit first. A writer therefore takes, before
-- it draws its first position, a shared advisory lock whose key is the sequence's value at that
-- moment: its floor. Every position that it draws is above its floor, and the lock goes with its
-- transaction, after the commit is visible. Shared locks hold up nobody.
--
-- A reader looks at the sequence first and at the locks second: whatever position up to that value
-- is still to be committed belongs to a writer whose lock it sees. The lowest floor is the mark.
-- A position below the mark that is not there has been rolled back and never comes.
--
-- 1749231 is the class of the floors, 1749232 of streams, 1749233 of tags, 1749234 of keys.

-- Holds the mark below whatever the running transaction is about to draw.
CREATE FUNCTION eventstore.hold_mark() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    _transaction text := pg_current_xact_id()::text;
    _done boolean;
BEGIN
    IF current_setting('eventstore.holding', true) IS DISTINCT FROM _transaction THEN
        _done := pg_advisory_xact_lock_shared(1749231,
            (coalesce(pg_sequence_last_value('eventstore.global_position'), 0) & 2147483647)::integer
        ) IS NULL;
        -- once is enough; a rolled back savepoint takes back both the lock and this note of it
        _transaction := set_config('eventstore.holding', _transaction, true);
    END IF;
END
$$;

-- The last position that was drawn, whether or not it is committed.
CREATE FUNCTION eventstore.head() RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(pg_sequence_last_value('eventstore.global_position'), 0)
$$;

-- Up to here the log is complete. It can fall back a little, below what it said before, when a
-- writer is slow to take its lock: what was complete stays complete.
CREATE FUNCTION eventstore.high_water_mark() RETURNS bigint
LANGUAGE plpgsql VOLATILE AS $$
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
    SELECT min(_head - distance) INTO _floor
      FROM (SELECT (_head - objid::bigint) & 2147483647 AS distance
              FROM pg_locks
             WHERE locktype = 'advisory'
               AND classid = 1749231
               AND objsubid = 2
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
           ) AS floors
     WHERE distance < 1073741824;
    RETURN least(_head, _floor);
END
$$;

-- Who holds the mark back, the longest first: the answer to "why does the log stand still".
CREATE VIEW eventstore.writers_under_way AS
SELECT l.pid, a.usename AS role, a.application_name, a.state, a.xact_start AS started_at
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a USING (pid)
 WHERE l.locktype = 'advisory'
   AND l.classid = 1749231
   AND l.objsubid = 2
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 ORDER BY a.xact_start;
