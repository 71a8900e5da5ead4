"""Schema changes of captured tables, in the order of the log.

`shape` says what a table looks like and how two looks differ; `trigger` lets the source note each
change in its own transaction; `history` reads what was noted, and looks by itself where the role
may not make a trigger.
"""
