"""A user's project: settings, the module of views, the home folder, a first scaffold.

Purpose: find and load what a user has written.
Entry points: `project.open_project`, `settings.load` (`headwater.toml`, profiles, `${VAR}`),
`scaffold` (`headwater init`), `optional` (which parts of Headwater are installed).
Invariants: `settings` alone reads the environment. Loading a project starts nothing and writes
nothing.
Tests: tests/unit/headwater/project, tests/integration/headwater/project.
"""
