"""Snapshots: reads the rows of tables and sends them to their topics, while changes stream.

The connector only streams changes. This package sends the rows that a table had before capture
began, and rows that have to be read again. `request` accepts requests (a table, keys, a condition),
`reads` stores them with their progress, and `report` describes the progress. `read_point`
determines the log position of a snapshot, and `quiet_moment` that of a table without a key.
`ranges` splits a table into key ranges that are read in parallel, `chunk` reads and sends rows, and
`record` encodes them. `reader` schedules the work on a few `worker` threads.
"""
