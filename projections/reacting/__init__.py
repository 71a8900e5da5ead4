"""Reactors of changes: effects on the outside, and commands, from changes of captured tables.

Purpose: run an `eventstore.reactor.Reactor` over the changes of `cdc.consumer`.
Entry points: `change_reactor` (opens the changes, makes the effects), `dry_run` (lists them).
Invariants: a change is acknowledged after its effects; the key of an effect is the same at every
attempt; rows that a snapshot read have no effects.
Tests: tests/unit/projections/reacting, tests/integration/projections/reacting.
"""
