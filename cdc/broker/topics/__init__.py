"""Topics: made before they are written to, their properties, sizes and offsets.

Purpose: what is true of a topic, without reading its records. Entry points: `topics` (create,
properties, ids), `offsets` (ends), `extent` (offsets, bytes and times), `incarnation` (which topic
of a name it is), `truncation` (what lies before an offset is deleted). Invariants: a topic that was
deleted and recreated is told by its id. A compacted topic is never truncated. Tests:
tests/unit/cdc, tests/integration/cdc.
"""
