"""Personal data: encrypted for the person it is about, gone when that person's key is destroyed.

Purpose: a person can be forgotten in a log that is never changed.
Entry points: `personal` (fields marked `Personal[...]`), `keyring` (the port behind which keys
are kept), `master_key` (what keys are wrapped with), `personal_tags` (a personal value in a tag,
as a keyed hash), `sealing` (AES-256-GCM, bound to the place).
Invariants: a sealed value opens only where it was written. A master key is never stored beside
what it wraps. After a key is destroyed nothing opens.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
