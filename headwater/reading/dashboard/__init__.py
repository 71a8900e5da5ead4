"""The project's page: declared panels, answered from views, served to a browser.

Purpose: `headwater dashboard` shows numbers, lines, bars and rows of views.
Entry points: `server` (HTTP on the local machine), `answers` (a panel's query over published
versions), `page/` (HTML, CSS and JavaScript, without a library).
Invariants: reads only. All panels of an answer show one transaction boundary.
Declared by `projections.definition.dashboard`.
Tests: tests/unit/headwater/reading, tests/integration/headwater/reading.
"""
