"""Episodes: from when a row meets a condition until it has recovered.

A pure state machine of three states. A row that meets the condition is `pending` until it has done
so for the alert's hold time; then it is `open`, which is reported. A row that no longer meets it is
`ending` until the hold-down has passed; then it is reported as recovered, and deleted. A row that
recovers before it was reported is never reported, and one that returns before its recovery is not
reported again (the `for` and `keep_firing_for` of Prometheus' rules).

A row may be recent for a limited time. A row that is no longer recent counts as absent: its state
is deleted without a recovery message, since it has not recovered.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from projections.definition.alert import Event

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import datetime, timedelta


class EpisodeState(StrEnum):
    """The state of an episode."""

    PENDING = "pending"
    OPEN = "open"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Episode:
    """The recorded episode of a row.

    Attributes:
        state: Its state.
        since: When the row was first seen to meet the condition.
        ended: Since when the row no longer meets it, if the episode is ending.
        until: When the row is no longer recent; None for never.
    """

    state: EpisodeState
    since: datetime
    ended: datetime | None = None
    until: datetime | None = None


class EpisodeStep(NamedTuple):
    """A state change of a row.

    Attributes:
        key: The row's key.
        episode: The new state; None if the episode is over.
        event: The message to send, if any.
    """

    key: str
    episode: Episode | None
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class NotificationDelay:
    """Wait before a message is sent.

    Attributes:
        hold: How long a row must meet the condition.
        quiet: How long it must not meet the condition.
    """

    hold: timedelta
    quiet: timedelta


def steps(
    known: Mapping[str, Episode],
    met: Mapping[str, datetime | None],
    now: datetime,
    delay: NotificationDelay,
) -> Iterator[EpisodeStep]:
    """Yields the changed states of rows.

    Args:
        known: The present states, by key.
        met: Keys of the rows that meet the condition now, with the time until which each is recent.
        now: The time; never before that of an earlier call.
        delay: The alert's hold times.
    """
    for key in sorted({*known, *met}):
        before = known.get(key)
        step = (
            _met(key, met[key], before, now, delay)
            if key in met
            else _not_met(key, before, now, delay)
        )
        if step.episode != before or step.event is not None:
            yield step


def due_at(known: Collection[Episode], delay: NotificationDelay) -> datetime | None:
    """Returns when a message is due without a change of a row; None for never."""
    pending = (each.since + delay.hold for each in known if each.state is EpisodeState.PENDING)
    ending = (each.ended + delay.quiet for each in known if each.ended is not None)
    return min((*pending, *ending), default=None)


def _met(
    key: str,
    until: datetime | None,
    before: Episode | None,
    now: datetime,
    delay: NotificationDelay,
) -> EpisodeStep:
    episode = replace(before or Episode(EpisodeState.PENDING, now), until=until)
    if episode.state is EpisodeState.PENDING and now - episode.since >= delay.hold:
        return EpisodeStep(key, replace(episode, state=EpisodeState.OPEN), Event.OPENED)
    if episode.state is EpisodeState.ENDING:
        return EpisodeStep(key, Episode(EpisodeState.OPEN, episode.since, until=until))
    return EpisodeStep(key, episode)


def _not_met(
    key: str, before: Episode | None, now: datetime, delay: NotificationDelay
) -> EpisodeStep:
    if before is None or before.state is EpisodeState.PENDING:
        return EpisodeStep(key, None)
    if before.ended is None and before.until is not None and now >= before.until:
        return EpisodeStep(key, None)
    ended = before.ended or now
    if now - ended >= delay.quiet:
        return EpisodeStep(key, None, Event.RECOVERED)
    return EpisodeStep(key, replace(before, state=EpisodeState.ENDING, ended=ended))
