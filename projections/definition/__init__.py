"""What a user declares: sources, views, alerts and the dashboard, as frozen values.

Purpose: the words of `headwater` (`view.mirror`, `view.sql`, `alert`, ...) and the values that
they make; nothing here has seen a table of the source yet.
Entry points: `api` (the words), `views` (the values), `registry` (what one module declares),
`codec` (a definition as JSON and back), `diff` (what a changed definition asks for).
Folders: `operators` (windows, measures, patterns), `derived` (views made from views),
`expectations` (conditions that rows should meet).
Invariants: imports no library that reaches outside. Class names that `codec` lists, and the text
that `repr` makes of patterns and search options, are stored: they may move, and not be renamed.
Tests: tests/unit/projections/definition, tests/integration/projections.
"""
