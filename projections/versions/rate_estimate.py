"""Estimates the rate of a rebuild from measured ones.

A mirror's rate does not predict that of a history, which writes every change, or of events. The
estimate therefore uses the newest rebuild of the same view, or else the newest of a view of its
kind. A rebuild with half of the time is assumed to run at half the speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from projections.definition.views import MirrorView
from projections.errors import DefinitionUnreadableError
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from projections.definition.views import AnyView
    from projections.versions.version import FillProgress, ViewVersion

_CHANGES_PER_S: Final = 20_000
"""Rate on a small machine where no rebuild of the kind was measured."""
_MEASURED_S: Final = 1.0
"""A replay that took no longer than this mostly measured its own start."""


class Rate(NamedTuple):
    """The estimated rate of a rebuild.

    Attributes:
        per_s: Changes per second.
        known_by: The basis of the estimate, in words.
    """

    per_s: float
    known_by: str


def rate_of(versions: Iterable[ViewVersion], view: AnyView, share: float = 1.0) -> Rate:
    """Estimates the rate of a rebuild.

    Args:
        versions: All versions ever created of the source's views.
        view: The view to build.
        share: Greatest share of the time that the replay may take, above 0 to 1.
    """
    measured = sorted(filter(_measured, versions), key=_made)
    alike = [each for each in measured if _kind_of(each) == _kind(view)]
    own = [each for each in alike if each.view == view.name]
    last = next(reversed(own or alike), None)
    if last is None or last.replayed is None:
        basis = f"none was measured: {_CHANGES_PER_S:,} changes a second of its time are assumed"
        return Rate(_CHANGES_PER_S * share, basis)
    replayed = last.replayed
    per_s = replayed.records / replayed.seconds
    whose = "its last rebuild" if own else f"the last rebuild of {last.view}"
    if replayed.share is None:
        return Rate(per_s, f"by {whose}, whose share of the time was not recorded")
    return Rate(per_s * share / replayed.share, f"by {whose}")


def share_of(before: FillProgress, seconds: float, share: float) -> float | None:
    """Returns the average share of the time that a replay had; it may have been paused.

    Args:
        before: Its progress when it began or continued.
        seconds: How long it has run since.
        share: Its share since.

    Returns:
        The share; None if the earlier one is unknown.
    """
    if not before.seconds:
        return share
    if before.share is None:
        return None
    whole = before.seconds + seconds
    return round((before.share * before.seconds + share * seconds) / whole, 4)


def _measured(version: ViewVersion) -> bool:
    replayed = version.replayed
    if replayed is None or replayed.progress is not None:
        return False
    return replayed.records > 0 and replayed.seconds > _MEASURED_S


def _made(version: ViewVersion) -> tuple[float, int]:
    at = version.made_at
    return (0.0 if at is None else at.timestamp(), version.number)


def _kind_of(version: ViewVersion) -> tuple[str, bool] | None:
    try:
        return _kind(registry.defined(version))
    except DefinitionUnreadableError:
        return None


def _kind(view: AnyView) -> tuple[str, bool]:
    return type(view).__name__, isinstance(view, MirrorView) and view.history is not None
