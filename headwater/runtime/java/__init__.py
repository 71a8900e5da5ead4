"""The Java dependencies of Headwater: locked jars with checksums, and a Java runtime.

Purpose: `python -m headwater.runtime.java fetch` downloads the locked jars, `archive` creates the
job's class archive, `lock` resolves the versions again.
Entry points: `jars.ensure`, `lock` (the lock files of `kafka/`, `opensearch/` and `spark/`),
`java.find_java`, `verified` (a file with the right digest), `progress`.
Invariants: a jar is used only if its bytes have the locked digest. Nothing is fetched at run time
that a lock file does not name.
Tests: tests/unit/headwater/runtime, tests/integration/headwater/runtime.
"""

from __future__ import annotations
