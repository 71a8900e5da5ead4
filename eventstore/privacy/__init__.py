"""Personal data: encrypted with a key per person, and unreadable after that key is destroyed.

Purpose: erases the data of a person from a log that never changes.
Entry points: `personal` (fields marked `Personal[...]`), `keyring` (the port for key storage),
`master_key` (the keys that wrap a person's key), `personal_tags` (a personal value in a tag, as a
keyed hash), `sealing` (AES-256-GCM, bound to the location of the value).
Invariants: a sealed value can be decrypted only where it was written. A master key is never stored
beside the keys that it wraps. After a key is destroyed, its values cannot be decrypted.
Tests: tests/unit/eventstore, tests/integration/eventstore.
"""
