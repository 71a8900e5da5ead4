"""A dry run: which effects a part of the log would have; none is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventstore.log import LogPart
from eventstore.model.callables import check_function, check_instance
from eventstore.reactor.effect import describe
from eventstore.subscription.trace import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.reactor.reactor import Reactor
    from eventstore.store import EventStore


@dataclass(frozen=True, slots=True)
class PlannedEffect:
    """An effect that a reactor would make.

    Attributes:
        global_position: Of the event.
        stream: Of the event.
        type: Of the event.
        key: The key that the outside would be given; None where `react` failed.
        effect: What would be done, without values of events; None where `react` failed.
        error_type: What `react` raised, so that the event's stream would wait; None if nothing.
    """

    global_position: int
    stream: str
    type: str
    key: str | None
    effect: str | None
    error_type: str | None = None


def dry_run(
    store: EventStore, reactor: Reactor, *, after: int = 0, through: int | None = None
) -> Iterator[PlannedEffect]:
    """Yields the effects of a part of the log, in its order, and makes none.

    It reads the log alone: no position moves, and whether the reactor runs does not matter.

    Args:
        store: Whose log.
        reactor: Its `react` is called with each event.
        after: Only events after this global position.
        through: Only up to this one; None: up to where the log is complete.
    """
    check_instance("a reactor", reactor, ["effects"])
    check_function("read_all of the store of a dry run", store.read_all)
    for recorded in store.read_all(LogPart(query=reactor.query, after=after, through=through)):
        where = (recorded.global_position, recorded.stream, recorded.type)
        try:
            effects = reactor.effects(recorded)
        except Exception as error:  # noqa: BLE001  # the user's own code: the rest is listed, too
            yield PlannedEffect(*where, None, None, kind_of(error))
            continue
        for number, effect in enumerate(effects, 1):
            key = f"{reactor.name}:{recorded.event_id}:{number}"
            yield PlannedEffect(*where, key, describe(effect))
