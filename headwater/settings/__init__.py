"""Settings: `headwater.toml`, its profiles and the environment; nothing else reads the latter."""

from __future__ import annotations

from headwater.settings.file import DEFAULT_FILE, HOME_FOLDER, load
from headwater.settings.model import (
    ServiceSettings,
    Settings,
    SourceSettings,
    SparkSettings,
)

__all__ = [
    "DEFAULT_FILE",
    "HOME_FOLDER",
    "ServiceSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "load",
]
