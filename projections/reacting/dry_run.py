"""A dry run: which effects the changes of the topics would have; none is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdc.capture import CaptureSpec
from cdc.consumer import GroupStart, read_changes
from eventstore.reactor.effect import describe
from eventstore.subscription.trace import kind_of
from projections.reacting.change_reactor import change_key, tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc.consumer import Change
    from eventstore.reactor import Reactor


@dataclass(frozen=True, slots=True)
class PlannedChangeEffect:
    """An effect that a reactor of changes would make.

    Attributes:
        table: The table.
        topic: Topic of the change.
        partition: Its partition.
        offset: Its offset.
        key: The key that the effect would have; None if `react` failed, or the table has no key.
        effect: What would be done, without values of rows; None as `key`.
        error_type: Class of the error for which the change's key would wait; None if there is none.
    """

    table: str
    topic: str
    partition: int
    offset: int
    key: str | None
    effect: str | None
    error_type: str | None = None


def dry_run_changes(
    kafka: Any, reactor: Reactor, *, start: GroupStart = GroupStart.BEGINNING, **options: Any
) -> Iterator[PlannedChangeEffect]:
    """Yields the effects of the changes that the topics have now, and makes none.

    It joins no group and commits nothing, so a running reactor is unaffected.

    Args:
        kafka: See `cdc.changes`.
        reactor: Its `react` is called with each change, except rows of snapshots.
        start: Where to begin in each partition.
        options: `source`, `tables`, `dsn` and other options of `cdc.consumer.read_changes`.

    Raises:
        CdcError: See `cdc.consumer.read_changes`.
        DeclarationError: See `reactor_changes`.
    """
    if options.get("tables") is not None:
        options["tables"] = tables_of(options["tables"])
    source = kafka.name if isinstance(kafka, CaptureSpec) else options["source"]
    for change in read_changes(kafka, start=start, **options):
        if not change.snapshot:
            yield from _planned(reactor, source, change)


def _planned(reactor: Reactor, source: str, change: Change) -> Iterator[PlannedChangeEffect]:
    where = (str(change.table), change.topic, change.partition, change.offset)
    try:
        effects = reactor.effects(change)  # type: ignore[arg-type]  # takes changes
        key = change_key(reactor.name, source, change) if effects else ""
    except Exception as error:  # noqa: BLE001  # the user's own code: the rest is listed, too
        yield PlannedChangeEffect(*where, None, None, kind_of(error))
        return
    for number, effect in enumerate(effects, 1):
        yield PlannedChangeEffect(*where, f"{key}:{number}", describe(effect))
