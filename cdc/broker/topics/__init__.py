"""Topics: made before they are written to, their properties, sizes and offsets.

Purpose: what is true of a topic, without reading its records. Entry points: `topics` (create,
properties, ids), `offsets` (ends), `extent` (offsets, bytes and times), `incarnation` (which topic
of a name it is), `truncation` (deletes the records before an offset). Invariants: a recreated topic
is detected by its id. A compacted topic is never truncated. Tests: tests/unit/cdc,
tests/integration/cdc.
"""
