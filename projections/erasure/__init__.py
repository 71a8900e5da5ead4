"""A key forgotten everywhere, with a certificate of what was searched.

Purpose: remove a person's rows from stores, archive, quarantine and old files, and prove it.
Entry points: `erasure.Erasure` (the run), `archive` (changes of the key), `residue` (old versions
of tables, cache files, search segments), `file_search` and `canaries` (search every file for the
values), `certificate`, `unreached` (copies that an erasure cannot reach).
Invariants: what was erased is searched for afterwards. A place that was not searched is named in
the certificate.
Tests: tests/unit/projections/erasure, tests/integration/projections/erasure.
"""
