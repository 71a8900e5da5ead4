"""Snapshots: rows read from a table and sent to its topic, beside the stream of its changes.

The connector only streams. What was in a table before, or what must be read again, comes from here.
`request` takes wishes (a table, keys, a condition), `reads` remembers them and how far each is,
`report` tells it. `read_point` finds the position that a read stands for, `quiet_moment` that of a
table without a key, `ranges` cuts a table so that several parts are read at once, `chunk` reads and
sends rows, `record` makes their records; `reader` lets a few `worker`s do all that.
"""
