"""The declarations of a user: sources, views, alerts and the dashboard, as frozen values.

Purpose: the functions with which users declare (`view.mirror`, `view.sql`, `alert`, ...) and the
values that they return; nothing here reads a table of the source.
Entry points: `api` (the functions), `views` (the values), `registry` (the declarations of one
module), `codec` (a definition as JSON and back), `diff` (whether a change needs a rebuild).
Folders: `operators` (windows, measures, patterns), `derived` (views made from views),
`expectations` (conditions that rows should meet).
Invariants: imports no library that reaches outside. Class names that `codec` lists, and the text
that `repr` makes of patterns and search options, are stored: they may move, and not be renamed.
Tests: tests/unit/projections/definition, tests/integration/projections.
"""
