"""Rate: how fast a rebuild will be, by those that were measured.

What a mirror takes says nothing of a history, of which every change is written, nor of events. So a
rebuild is reckoned by the newest of the same view, else by the newest of a view of its kind. One
that was given half of the time was half as fast as it could have been.
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
"""What a rebuild takes of a small machine's time where none of its kind was ever measured."""
_MEASURED_S: Final = 1.0
"""A replay that took no longer than this was over before its rate could be told from its start."""


class Rate(NamedTuple):
    """How fast a rebuild will be about.

    Attributes:
        per_s: Changes per second.
        known_by: By what that is known, or what is assumed, in words.
    """

    per_s: float
    known_by: str


def rate_of(versions: Iterable[ViewVersion], view: AnyView, share: float = 1.0) -> Rate:
    """Returns how fast a rebuild of a view will be about.

    Args:
        versions: All that were ever made of the source's views.
        view: The view as it will be built.
        share: Of the time, how much the replay takes at most, above 0 to 1.
    """
    measured = sorted(filter(_measured, versions), key=_made)
    alike = [each for each in measured if _kind_of(each) == _kind(view)]
    own = [each for each in alike if each.view == view.name]
    last = next(reversed(own or alike), None)
    if last is None or last.replayed is None:
        said = f"none was measured: {_CHANGES_PER_S:,} changes a second of its time are assumed"
        return Rate(_CHANGES_PER_S * share, said)
    replayed = last.replayed
    per_s = replayed.records / replayed.seconds
    whose = "its last rebuild" if own else f"the last rebuild of {last.view}"
    if replayed.share is None:
        return Rate(per_s, f"by {whose}, whose share of the time was not noted")
    return Rate(per_s * share / replayed.share, f"by {whose}")


def share_of(before: FillProgress, seconds: float, share: float) -> float | None:
    """Returns the share of the time that a replay had, which may have been paused.

    Args:
        before: What was noted of it when it was begun or went on.
        seconds: How long it has gone on since.
        share: The share that it has had since.

    Returns:
        It; None if that of before is not known.
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
