"""Serialization of event classes as JSON: declared types, versions, exactness.

Purpose: every stored event reads back equal; an event that would not is refused when it is written.
Entry points: `registry` (`@event`, `@upcaster`: the declared classes and versions), `wire` (the
JSON of one class), `codec` (converts typed events to stored ones and back), `upcasting` (converts
an old payload to the latest version), `exactness` (the rule for each value), `recorded` (an event
as an application reads it).
Invariants: numbers are never converted to float. An unreadable event is an error with a code, never
a guess. Names of types and versions are data.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
