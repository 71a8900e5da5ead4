-- Whose locks hold the mark. Any role that may connect can take any advisory lock, and could stop
-- every reader of the log with one. So only a floor of a transaction counts that has a lock on the
-- table of events as well, which a role without a right on it cannot take. Each append has that lock
-- before it takes its floor: it looks for the stream's version first, or inserts.

-- Holds the mark below whatever the running transaction is about to draw.
CREATE OR REPLACE FUNCTION eventstore.hold_mark() RETURNS void
LANGUAGE plpgsql AS $$
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

-- Up to here the log is complete. It can fall back a little, below what it said before, when a
-- writer is slow to take its lock: what was complete stays complete.
CREATE OR REPLACE FUNCTION eventstore.high_water_mark() RETURNS bigint
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

-- Who holds the mark back, the longest first.
CREATE OR REPLACE VIEW eventstore.writers_under_way AS
SELECT l.pid,
       coalesce(a.usename, p.owner) AS role,
       a.application_name,
       coalesce(a.state, CASE WHEN p.gid IS NOT NULL THEN 'prepared' END) AS state,
       coalesce(a.xact_start, p.prepared) AS started_at,
       p.gid,
       CASE WHEN p.gid IS NOT NULL
                THEN format('COMMIT PREPARED %L or ROLLBACK PREPARED %L', p.gid, p.gid)
            WHEN l.pid IS NOT NULL THEN format('SELECT pg_terminate_backend(%s)', l.pid)
       END AS command
  FROM pg_locks AS l
  LEFT JOIN pg_stat_activity AS a USING (pid)
  LEFT JOIN (SELECT own.virtualtransaction, x.gid, x.owner, x.prepared
               FROM pg_prepared_xacts AS x
               JOIN pg_locks AS own
                 ON own.pid IS NULL AND own.locktype = 'transactionid'
                AND own.transactionid = x.transaction) AS p
    ON l.pid IS NULL AND l.virtualtransaction = p.virtualtransaction
 WHERE l.locktype = 'advisory'
   AND l.classid = 1749231
   AND l.objsubid = 2
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND EXISTS (SELECT FROM pg_locks AS t
                WHERE t.locktype = 'relation' AND t.relation = 'eventstore.events'::regclass
                  AND t.database = l.database AND t.virtualtransaction = l.virtualtransaction)
 ORDER BY 5;
