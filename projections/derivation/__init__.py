"""Derived views: which keys of a query over several inputs a change of its inputs affects.

Values only; `projections.spark.derivation` asks Spark for its plan and runs what is found here.

| module | |
|---|---|
| `query_plan` | Spark's logical plan, read from its JSON |
| `path` | what leads from an input's changed rows to the columns that address a view's rows |
| `lineage` | finds the paths, and proves that they miss nothing |
| `nearness` | which rows of inputs need not be read for what changed, and why |
| `stretch` | a few ranges in which all of some values lie |
| `strategy` | by which columns a view is kept, or why it is computed as a whole |
"""
