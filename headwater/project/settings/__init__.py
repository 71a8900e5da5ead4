"""Settings: `headwater.toml`, its profiles and the environment; nothing else reads the latter."""

from __future__ import annotations

from headwater.project.settings.file import DEFAULT_FILE, HOME_FOLDER, load
from headwater.project.settings.model import (
    EventStoreSettings,
    ServiceSettings,
    Settings,
    SourceSettings,
    SparkSettings,
)

__all__ = [
    "DEFAULT_FILE",
    "HOME_FOLDER",
    "EventStoreSettings",
    "ServiceSettings",
    "Settings",
    "SourceSettings",
    "SparkSettings",
    "load",
]
