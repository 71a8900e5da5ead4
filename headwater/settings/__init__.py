"""Settings: `headwater.toml`, its profiles and the environment; nothing else reads the latter."""

from __future__ import annotations

from headwater.settings.file import DEFAULT_FILE, load
from headwater.settings.model import (
    ServiceSettings,
    Settings,
    SourceSettings,
    SparkSettings,
)

__all__ = [
    "DEFAULT_FILE",
    "ServiceSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "load",
]
