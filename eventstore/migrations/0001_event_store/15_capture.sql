-- Captured views of events follow the log: a row that leaves the archive is an event that was
-- dropped for good, and its type says which views had it.
ALTER TABLE eventstore.archived_events REPLICA IDENTITY FULL;
