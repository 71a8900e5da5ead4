"""Derived views in Spark: the query's plan, the keys that a change affects, their new rows.

| module | |
|---|---|
| `definition` | a view's query: a function of DataFrames, or the text of a SELECT |
| `analysis` | asks Spark for the plan and chooses the strategy |
| `catalyst` | runs paths with the plan's own expressions |
| `affected_keys` | the keys that a change affects, few or many |
| `recomputation` | what affects them, their rows, what to write and what to delete |
| `nearby` | inputs without rows that are not near what changed |
| `onward` | the same along the time of a group, from where a change reaches |
| `comparison` | a whole result beside what is stored; keys that are not unique |
| `matching` | views of patterns |
| `impossible` | conditions that are true of no row |
| `percolation` | views of standing queries |
"""
