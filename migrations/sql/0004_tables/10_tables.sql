-- Tables that a subscription alone writes: a replay would double what they hold, a rebuild makes them
-- anew.
ALTER TABLE eventstore.subscriptions ADD COLUMN tables text[] NOT NULL DEFAULT '{}';
