"""The event store: commands are refused or become events; streams are the truth."""

from __future__ import annotations

from eventstore.errors import EventStoreError

__all__ = ["EventStoreError"]
