"""Settings of a project whose servers a test has started, or does without."""

from __future__ import annotations

from typing import Final

_NOWHERE: Final = "127.0.0.1:1"
_SETTINGS: Final = """
[project]
name = "shop"
[source.shop]
dsn = "{dsn}"
[services.kafka]
address = "{nowhere}"
[services.connect]
address = "http://{nowhere}"
[services.search]
address = "http://{nowhere}"
[services.cache]
address = "{cache}"
"""


def cache_project(dsn: str, cache_url: str) -> str:
    """Settings of a project that needs its source and its cache only."""
    return _SETTINGS.format(dsn=dsn, cache=cache_url, nowhere=_NOWHERE)
