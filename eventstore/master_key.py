"""Master keys: the public name of `eventstore.privacy.master_key`."""

from __future__ import annotations

from eventstore.privacy.master_key import (
    MasterKeys,
    master_key_line,
    new_master_keys,
    read_master_keys,
)

__all__ = ["MasterKeys", "master_key_line", "new_master_keys", "read_master_keys"]
