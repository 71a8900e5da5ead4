"""Plans: every decision of the store as a generator, executed by a blocking or an asyncio driver.

Purpose: `EventStore` and `AsyncEventStore` share everything but waiting.
Entry points: `operation` (what a plan may ask of a log), `appending`, `loading` (a state, from a
saved one if it can be believed), `handling` (a command), `waiting`, `idempotency`,
`snapshotting`, `planner` (all of them for one store).
Invariants: no I/O here: a plan yields calls and is sent answers. A saved state is never the
truth; what does not fit is ignored and folded again.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
