-- Where in the handler's own code an event or a timer failed: file and line, never a value.

ALTER TABLE eventstore.parked_events ADD COLUMN error_location text;
ALTER TABLE eventstore.timers ADD COLUMN error_location text;

-- Who holds the mark back, the longest first. A prepared transaction has no process: it is found by
-- the lock on its own number, and it stays until somebody commits it or rolls it back, also over a restart.
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
 ORDER BY 5;
