"""Event classes as JSON and back: declared types, versions, exactness.

Purpose: what is written reads back equal, or is refused when it is written.
Entry points: `registry` (`@event`, `@upcaster`: which classes and versions there are), `wire`
(the JSON of one class), `codec` (typed events to what the log holds, and back), `upcasting` (an
old payload becomes the latest), `exactness` (the rule, value by value), `recorded` (an event as
an application reads it).
Invariants: numbers never pass through a float. An event that cannot be read is an error with a
code and never a guess. Names of types and versions are data.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
