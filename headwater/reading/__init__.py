"""What reads views and changes nothing: SQL, search, cache, time travel, dashboard.

Purpose: one consistent state for readers, and a writer reads its own write.
Entry points: `views.Views` (rows of views behind a position token), `sql.run` (SELECT over
published tables), `time_travel` (rows as they were), `replay` (a view replayed to a moment),
`notebook.spark`, `http_tokens` (tokens in a header), `dashboard` (the project's page).
Public names are `headwater.reading.views`, `headwater.reading.notebook` and
`headwater.reading.http_tokens`.
Invariants: a reader sees one transaction boundary in all tables. Does not import
`headwater.operations`.
Tests: tests/unit/headwater/reading, tests/integration/headwater/reading.
"""
