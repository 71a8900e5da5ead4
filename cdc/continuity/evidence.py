"""Evidence: the state of a capture in source, Connect and Kafka, and whether changes are lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.reading import heartbeats
from cdc.broker.topics import incarnation
from cdc.capture import HEARTBEAT_TABLE
from cdc.connect.connector import EPOCH_PROPERTY
from cdc.continuity import errors
from cdc.continuity.errors import ContinuityError
from cdc.postgres import captures, server, slot

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from psycopg import Connection

    from cdc.broker.topics.incarnation import Incarnation
    from cdc.capture import CaptureSpec
    from cdc.connect.rest import ConnectRest
    from cdc.lsn import Lsn
    from cdc.postgres.captures import Capture
    from cdc.postgres.server import Server
    from cdc.postgres.slot import SlotStatus


@dataclass(frozen=True, slots=True)
class Evidence:
    """The state of a capture on both sides at one moment, the source's first.

    Attributes:
        server: The server now.
        capture: The recorded capture; None if there is none.
        slot: Its slot; None if it does not exist.
        stored: Whether the connector has a stored offset.
        reached: Position through which Kafka has everything; None if the connector does not report
            it.
        beat_written: Number of the last heartbeat written in the source.
        beat_arrived: Number of the newest heartbeat in Kafka, in the captured epoch.
        topics: Its existing topics.
        registered_epoch: Epoch of the registered connector; 0 if there is none.
        left_at: Where the server's history left the captured timeline; None if it has not.
    """

    server: Server
    capture: Capture | None
    slot: SlotStatus | None
    stored: bool = False
    reached: Lsn | None = None
    beat_written: int = 0
    beat_arrived: int | None = None
    topics: Mapping[str, Incarnation] = field(default_factory=dict)
    registered_epoch: int = 0
    left_at: Lsn | None = None

    @property
    def failed_over(self) -> bool:
        """Returns whether the source is on another timeline of the captured cluster."""
        known = self.capture
        return known is not None and (
            self.server.system_id == known.system_id and self.server.timeline != known.timeline
        )


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a capture cannot continue.

    Attributes:
        kind: Class of the error.
        message: What is missing.
        detail: The observed state.
    """

    kind: type[ContinuityError]
    message: str
    detail: str | None = None

    @property
    def code(self) -> str:
        """The error's stable code."""
        return self.kind.code

    def document(self) -> dict[str, str | None]:
        """Returns it for a program to read."""
        about = {"code": self.code, "message": self.message, "detail": self.detail}
        return {**about, "hint": errors.REPAIR}

    def error(self) -> ContinuityError:
        """Returns it as an error whose hint is the repair."""
        return self.kind(self.message, detail=self.detail, hint=errors.REPAIR)


def epoch_of(config: Mapping[str, str]) -> int:
    """Returns the epoch that a registered connector writes; 0 for a foreign connector."""
    return int(config.get(EPOCH_PROPERTY, "0"))


BY_CODE: Final = {kind.code: kind for kind in ContinuityError.__subclasses__()}


def gather(connection: Connection[Any], rest: ConnectRest, spec: CaptureSpec) -> Evidence:
    """Reads the state of source, Connect and Kafka; changes nothing.

    Raises:
        ConnectUnavailableError: Connect does not answer.
        BrokerUnreachableError: No broker answers.
    """
    here = server.identify(connection)
    capture = captures.find(connection, spec.name)
    found = slot.status(connection, spec.slot)  # read before the offsets, which it follows
    offsets = rest.offsets(spec.connector)
    reached = rest.captured_through(spec.connector)
    written = captures.newest_beat(connection) if capture else 0
    # read after Connect and before Kafka, so that neither can be ahead of it without an error
    left = None
    if capture is not None and here.timeline > capture.timeline:
        left = server.left_timeline(
            spec.reader_dsn, timeline=capture.timeline, current=here.timeline
        )
    noted = set(capture.topics or ()) if capture else set()
    arrived = _newest_beat(spec, capture) if capture else None
    if arrived is not None and arrived > written:
        written = captures.newest_beat(connection)  # it may have been written since
    return Evidence(
        server=here,
        capture=capture,
        slot=found,
        stored=any(stored.get("offset") for stored in offsets),
        reached=reached,
        beat_written=written,
        beat_arrived=arrived,
        topics=incarnation.look(spec.kafka_bootstrap, noted) if noted else {},
        registered_epoch=epoch_of(rest.config(spec.connector) or {}),
        left_at=left,
    )


def gather_at_source(connection: Connection[Any], spec: CaptureSpec) -> Evidence:
    """Reads the state of the source alone, if Connect or Kafka does not answer; changes nothing.

    The rest is assumed to be intact.
    """
    capture, found = captures.find(connection, spec.name), slot.status(connection, spec.slot)
    here = server.identify(connection)
    places = [
        place
        for place in (
            capture.captured_lsn if capture else None,
            found.confirmed_flush_lsn if found else None,
        )
        if place is not None
    ]
    return Evidence(
        server=here,
        capture=capture,
        slot=found,
        stored=True,
        reached=max(places, default=None) if capture else None,
        topics=(capture.topics or {}) if capture else {},
        left_at=_left_timeline(spec, capture, here),
    )


def judge(seen: Evidence) -> Loss | None:
    """Returns why a capture cannot continue; None if it can, or if there is none yet.

    The first reason counts: causes precede their consequences.
    """
    return next(_losses(seen), None)


def noted(known: Capture) -> Loss:
    """Returns the recorded loss of a capture."""
    kind = BY_CODE.get(known.lost or "", errors.BeatMissingError)
    return Loss(kind, known.lost_detail or f"changes of source {known.source} are missing")


def _losses(seen: Evidence) -> Iterator[Loss]:
    known = seen.capture
    if known is None:
        if seen.reached is not None:
            yield Loss(
                errors.OtherServerError,
                "the source does not know of its capture",
                f"Kafka has its changes through {seen.reached}",
            )
        return
    if known.repairing is not None:
        yield Loss(
            errors.RepairUnfinishedError,
            f"the repair of source {known.source} was begun and not ended",
            f"it makes epoch {known.repairing}",
        )
    if known.lost is not None:
        yield noted(known)
    yield from _of_server(seen, known)
    yield from _of_topics(seen, known)
    yield from _of_slot(seen, known)


def _of_server(seen: Evidence, known: Capture) -> Iterator[Loss]:
    here, reached = seen.server, _reached(seen, known)
    if here.system_id != known.system_id:
        yield Loss(
            errors.OtherServerError,
            "this is another server than the one that was captured",
            f"system identifier {here.system_id}, captured {known.system_id}",
        )
    if seen.failed_over and (seen.left_at is None or (reached and reached > seen.left_at)):
        yield Loss(
            errors.SourceRestoredError,
            "the source is on another history than was captured",
            f"timeline {here.timeline} left timeline {known.timeline} at {seen.left_at},"
            f" captured through {reached}",
        )
    if reached is not None and reached > here.end_lsn:
        yield Loss(
            errors.SourceRestoredError,
            "the source was restored to an earlier time",
            f"captured through {reached}, its log ends at {here.end_lsn}",
        )
    if seen.registered_epoch > known.epoch:
        yield Loss(
            errors.SourceRestoredError,
            "the source was restored to an earlier time",
            f"its connector writes epoch {seen.registered_epoch}, it says {known.epoch}",
        )
    if seen.beat_arrived is not None and seen.beat_arrived > seen.beat_written:
        yield Loss(
            errors.SourceRestoredError,
            "the source was restored to an earlier time",
            f"heartbeat {seen.beat_arrived} was captured, {seen.beat_written} written",
        )


def _of_topics(seen: Evidence, known: Capture) -> Iterator[Loss]:
    for name, before in sorted((known.topics or {}).items()):
        now = seen.topics.get(name)
        if now is None:
            found = f"topic {name} is gone"
        elif now.id != before.id:
            found = f"topic {name} was deleted and recreated"
        elif shorter(now, before):
            found = f"topic {name} ended at {before.ends} and ends at {now.ends}"
        else:
            continue
        yield Loss(errors.TopicsRecreatedError, "Kafka has lost changes that it had", found)


def shorter(now: Incarnation, before: Incarnation) -> bool:
    """Returns whether a topic's log ends before its former end."""
    if len(now.ends) < len(before.ends):
        return True
    return any(end < was for end, was in zip(now.ends, before.ends, strict=False))


def _of_slot(seen: Evidence, known: Capture) -> Iterator[Loss]:
    found, reached = seen.slot, _reached(seen, known)
    since = f"changes since {reached or known.slot_made_at} are missing"
    if found is None:
        kind = errors.FailoverWithoutSlotError if seen.failed_over else errors.SlotDroppedError
        yield Loss(kind, f"slot {known.slot} is gone: {since}", _history(seen))
        return
    if found.lost or found.confirmed_flush_lsn is None:
        why = found.invalidation or found.wal_status
        yield Loss(
            errors.SlotInvalidatedError,
            f"the server has given up slot {known.slot}: {since}",
            f"reason {why}",
        )
        return
    stands = found.confirmed_flush_lsn
    # a slot is confirmed only after an offset was stored; heartbeats arrive before both
    confirmed = known.captured_lsn is not None or (
        seen.beat_arrived is not None and stands > known.slot_made_at
    )
    if seen.reached is None and confirmed:
        yield Loss(
            errors.OffsetsGoneError,
            "the connector's offsets are gone while its slot stands",
            f"slot stands at {stands}",
        )
    if stands > (reached or known.slot_made_at):
        yield _moved(found, stands, reached or known.slot_made_at)


def _moved(found: SlotStatus, stands: Lsn, reached: Lsn) -> Loss:
    # A slot retains log from before its reader's position; one that was recreated begins after it.
    begins = found.restart_lsn
    if begins is not None and begins >= reached and not found.decoded_transactions:
        return Loss(
            errors.SlotRecreatedError,
            f"slot {found.name} was dropped and recreated: changes since {reached} are missing",
            f"captured through {reached}, its log begins at {begins}",
        )
    return Loss(
        errors.SlotMovedError,
        f"another client moved slot {found.name}: changes since {reached} are missing",
        f"captured through {reached}, slot stands at {stands}",
    )


def _reached(seen: Evidence, known: Capture) -> Lsn | None:
    """Returns the latest position through which Kafka is known to have everything."""
    places = [place for place in (seen.reached, known.captured_lsn) if place is not None]
    return max(places, default=None)


def _history(seen: Evidence) -> str | None:
    if not seen.failed_over or seen.capture is None:
        return None
    return f"timeline {seen.capture.timeline} became timeline {seen.server.timeline}"


def _left_timeline(spec: CaptureSpec, capture: Capture | None, here: Server) -> Lsn | None:
    if capture is None or here.timeline <= capture.timeline:
        return None
    return server.left_timeline(spec.reader_dsn, timeline=capture.timeline, current=here.timeline)


def _newest_beat(spec: CaptureSpec, capture: Capture) -> int | None:
    found, _ = heartbeats.read(spec.kafka_bootstrap, spec.table_topics[HEARTBEAT_TABLE])
    numbers = [beat.number for beat in found if beat.epoch == capture.epoch]
    return max(numbers, default=None)
