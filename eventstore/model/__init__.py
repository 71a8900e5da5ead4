"""Values of the log: events before and after they are appended, and how they are asked for.

Purpose: the words that every other folder shares, without a database and without event classes.
Entry points: `event` (NewEvent, StoredEvent, appends and their answers), `event_id`, `names`
(streams, categories, tenants, tags), `query` (by type and tag), `expected_version`, `token`
(where a command's events are), `callables` (what a caller hands over to be called), `unknown`
(what becomes of unknown events).
Invariants: imports `eventstore.errors` and nothing else of the package. A name that is not
allowed is refused when the value is made.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
