-- Tables that a subscription alone writes: a replay would double what they hold, a rebuild
-- builds them again beside the live ones.
ALTER TABLE eventstore.subscriptions ADD COLUMN tables text[] NOT NULL DEFAULT '{}';
