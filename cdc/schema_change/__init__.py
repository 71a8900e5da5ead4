"""Schema changes of captured tables, in the order of the log.

`shape` describes a table; `difference` compares two shapes; `trigger` lets the source record each
change in the transaction that makes it; `history` reads the records, and compares tables itself if
the role may not create a trigger.
"""
