"""Erases a key from every place, and issues a certificate of the places that were searched.

Purpose: remove a person's rows from stores, archive, quarantine and old files, and prove it.
Entry points: `erasure.Erasure` (the run), `archive` (changes of the key), `residue` (old versions
of tables, cache files, search segments), `file_search` and `canaries` (search every file for the
values), `certificate`, `unreached` (copies that an erasure cannot reach).
Invariants: erased values are searched for afterwards. The certificate names the places that were
not searched.
Tests: tests/unit/projections/erasure, tests/integration/projections/erasure.
"""
