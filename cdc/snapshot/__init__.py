"""Snapshots: rows read from a table and sent to its topic, beside the stream of its changes.

The connector only streams. What was in a table before, or what must be read again, comes from here:
`reads` remembers what is asked for and how far it is, `read_point` finds the position that a read
stands for, `record` turns rows into records, `reader` does the work.
"""
