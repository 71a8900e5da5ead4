"""Dry run: lists the effects of a part of the log without performing them."""

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
    """An effect that a reactor would perform.

    Attributes:
        global_position: Global position of the event.
        stream: Stream of the event.
        type: Type of the event.
        key: Idempotency key of the effect; None if `react` failed.
        effect: Description of the effect, without values of events; None if `react` failed.
        error_type: Error raised by `react`, which would park the stream; None without one.
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
    """Yields the effects of a part of the log, in log order, without performing them.

    The dry run only reads the log. It moves no checkpoint, and the reactor may be running.

    Args:
        store: The store whose log is read.
        reactor: The reactor whose `react` is called with each event.
        after: Only events after this global position.
        through: Only events up to this global position; None: up to the high-water mark.
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
