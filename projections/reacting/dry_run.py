"""A dry run: lists the effects of changes in topics or the archive, and makes none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdc.capture import CaptureSpec
from cdc.change_event import EPOCH_HEADER
from cdc.consumer import ChangeDecoder, GroupStart, read_changes
from eventstore.reactor.effect import describe
from eventstore.subscription.trace import kind_of
from projections.archive.scan import ArchiveScan
from projections.archive.table import record_key, record_value
from projections.reacting.change_reactor import change_key, tables_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date
    from pathlib import Path

    from cdc.consumer import Change
    from eventstore.reactor import Reactor

_READ: Final = (
    *("topic", "partition", "offset", "epoch", "key", "before", "after", "source", "rest"),
    *("raw_key", "raw_value"),
)


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
    """Yields the effects of the changes in the topics now, and makes none.

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
    source = _prepared(kafka, options)
    for change in read_changes(kafka, start=start, **options):
        yield from _planned(reactor, source, change)


def dry_run_archive(
    archive: Path, kafka: Any, reactor: Reactor, *, since: date | None = None, **options: Any
) -> Iterator[PlannedChangeEffect]:
    """Yields the effects of the changes in the archive, and makes none.

    The archive may have changes that the topics no longer have. They are yielded in the order of
    its files.

    Args:
        archive: Folder of the source's archive.
        kafka: See `dry_run_changes`; no broker is contacted.
        reactor: See `dry_run_changes`.
        since: First day on which the changes came, UTC; None for all.
        options: See `dry_run_changes`.

    Raises:
        ArchiveMissingError: There is no archive, or one of its files cannot be read.
        CdcError: See `cdc.consumer.ChangeDecoder`.
        DeclarationError: See `reactor_changes`.
    """
    source = _prepared(kafka, options)
    decoder = ChangeDecoder(kafka, **options)
    for batch in ArchiveScan(archive, set(decoder.spec.topics), since=since).records(_READ):
        for row in batch.to_pylist():
            value = record_value(row)
            if value is not None and row["epoch"] is not None:
                headers = ((EPOCH_HEADER, str(row["epoch"]).encode()),)
                place = (row["topic"], row["partition"], row["offset"])
                record = _Record(*place, record_key(row), value, headers)
                yield from _planned(reactor, source, decoder.change(record))


class _Record(NamedTuple):
    """A record of the archive in Kafka's form."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


def _prepared(kafka: Any, options: dict[str, Any]) -> str:
    """Replaces mirrors by their tables; returns the source's name."""
    if options.get("tables") is not None:
        options["tables"] = tables_of(options["tables"])
    name: str = kafka.name if isinstance(kafka, CaptureSpec) else options["source"]
    return name


def _planned(reactor: Reactor, source: str, change: Change) -> Iterator[PlannedChangeEffect]:
    if change.snapshot:
        return
    where = (str(change.table), change.topic, change.partition, change.offset)
    try:
        effects = reactor.effects(change)  # type: ignore[arg-type]  # takes changes
        key = change_key(reactor.name, source, change) if effects else ""
    except Exception as error:  # noqa: BLE001  # the user's own code: the rest is listed, too
        yield PlannedChangeEffect(*where, None, None, kind_of(error))
        return
    for number, effect in enumerate(effects, 1):
        yield PlannedChangeEffect(*where, f"{key}:{number}", describe(effect))
