"""Deciders: a consistency boundary as pure functions, or as a class.

Purpose: a command is refused or becomes events, by a state that is folded from events.
Entry points: `decider.Decider`, `aggregate` (a decider written as a class), `context` (who does
something, why and when), `fold_identity` (which saved states a decider may read), `scenario`
(given, when, then: how deciders are tested).
Invariants: pure: a decider reads no clock and no database. The same events give the same state.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
