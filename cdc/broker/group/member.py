"""One member of a consumer group: what Kafka's client does for it, and what it must not do.

The client never commits automatically, and has no `auto_offset_reset`, which would skip records
silently. Partitions are assigned and revoked one by one (the cooperative protocol), so a member
that joins does not interrupt partitions that stay with other members.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from cdc.broker.client.admin import named
from cdc.broker.errors import BrokerUnreachableError, GroupRefusedError, TopicMissingError
from cdc.broker.topics.topics import identities

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cdc.broker.topics.extent import PartitionId

FETCH_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of one response, unless a single record is larger."""

_PARTITION_BYTES: Final = 256 * 1024
# A poll returns everything that was fetched: if a partition is paused while a part of a response is
# left over, the client (3.0.12) never fetches from that partition again.
_POLL_RECORDS: Final = 2**31
_REBALANCE_S: Final = 60.0
_ANSWER_MS: Final = 10_000
# The client (3.0.12) joins again if the response to its last attempt arrived between two polls, and
# then all other members must join again, too. With short polls, that would never end.
_JOIN_S: Final = 1.0
_SLICE_S: Final = 0.05  # slice of a wait in kafka's thread, which also sends heartbeats
_METADATA_BYTES_MAX: Final = 1_000

_log = structlog.get_logger(__name__)


class PartitionOwner(Protocol):
    """Owns the records of assigned partitions; called from the client's thread."""

    def assigned(self, partitions: set[PartitionId]) -> None:
        """Reports newly assigned partitions."""
        ...

    def release(self, partitions: set[PartitionId]) -> None:
        """Stops delivery from these partitions."""
        ...

    def wait_idle(self, partitions: set[PartitionId], timeout_s: float) -> bool:
        """Waits until no handler processes their records; returns False on timeout."""
        ...

    def committable(
        self, partitions: Iterable[PartitionId] | None = None
    ) -> dict[PartitionId, int]:
        """Returns the offsets that may be committed."""
        ...

    def forget(self, partitions: set[PartitionId]) -> None:
        """Reports partitions that moved to other members."""
        ...


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed position of a group in a partition.

    Attributes:
        offset: Offset of the next record.
        topic_id: Id of the topic that was read; None if not recorded.
        began_ms: When the group began to read the topic, milliseconds since 1970; None if not
            recorded.
    """

    offset: int
    topic_id: str | None = None
    began_ms: int | None = None

    @classmethod
    def parse(cls, offset: int, metadata: str | None) -> Committed:
        """Parses a commit; foreign metadata is ignored."""
        try:
            note = json.loads(metadata or "{}")
            return cls(offset, note.get("topic_id"), note.get("began_ms"))
        except (ValueError, AttributeError):
            return cls(offset)

    @property
    def note(self) -> str:
        """Returns the metadata to commit with the offset."""
        return json.dumps({"topic_id": self.topic_id, "began_ms": self.began_ms})


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll.

    Attributes:
        records: Records by partition, in offset order.
        out_of_range: Partitions whose next record is missing, with the wanted offset.
    """

    records: Mapping[PartitionId, Sequence[Any]] = field(default_factory=dict)
    out_of_range: Mapping[PartitionId, int] = field(default_factory=dict)


class GroupMember:
    """A member of a consumer group. All calls must come from one thread.

    Args:
        bootstrap: Kafka's address.
        group: Name of the group.
        topics: Topics to read; they must exist.
        owner: Receives assigned and revoked partitions.
        session_timeout_s: Silence after which the member counts as dead.
        handover_s: How long a partition that moves to another member waits for its records in
            progress.

    Raises:
        BrokerUnreachableError: No broker answers.
    """

    def __init__(  # noqa: PLR0913
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        owner: PartitionOwner,
        *,
        session_timeout_s: float,
        handover_s: float,
    ) -> None:
        from kafka.coordinator.assignors.cooperative_sticky import (  # noqa: PLC0415
            CooperativeStickyAssignor,
        )

        from cdc.broker.client.bounded_consumer import BoundedConsumer  # noqa: PLC0415  # see admin

        with named(bootstrap):
            self._client = BoundedConsumer(
                bootstrap_servers=bootstrap.split(","),
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                partition_assignment_strategy=[CooperativeStickyAssignor],
                session_timeout_ms=int(session_timeout_s * 1000),
                heartbeat_interval_ms=max(200, int(session_timeout_s * 1000 / 10)),
                max_poll_interval_ms=int(_REBALANCE_S * 1000),
                max_poll_records=_POLL_RECORDS,
                fetch_max_bytes=FETCH_BYTES,
                max_partition_fetch_bytes=_PARTITION_BYTES,
                metrics_enabled=False,
            )
            self._client.subscribe(topics, listener=self._listener(owner, handover_s))
            for topic in topics:
                # else it joins first, gets nothing, and has to join again
                self._client.partitions_for_topic(topic)
        self._bootstrap = bootstrap
        self._group = group
        self._notes: dict[PartitionId, Committed] = {}

    def poll(self, timeout_s: float) -> PollResult:
        """Takes part in the group and returns new records.

        Args:
            timeout_s: Longest wait for records; longer during a rebalance.
        """
        from kafka import errors  # noqa: PLC0415  # see admin
        from kafka.structs import MemberState  # noqa: PLC0415

        state = self._client.group_metadata().state
        if state != MemberState.STABLE:
            timeout_s = max(timeout_s, _JOIN_S)
        if state == MemberState.REBALANCING:
            # After a change of topics, the client (3.0.12) joins until partitions are assigned. If
            # a poll ends meanwhile, it forgets that join, and never sends a heartbeat or commit.
            self._client._coordinator.request_rejoin()  # noqa: SLF001
        with self._translated():
            try:
                records = self._client.poll(timeout_ms=max(1, int(timeout_s * 1000)))
            except errors.NoOffsetForPartitionError:
                return PollResult()  # newly assigned partitions get their offsets next
            except errors.OffsetOutOfRangeError as error:
                wanted: dict[PartitionId, int] = dict(error.args[0]) if error.args else {}
                return PollResult(out_of_range=wanted)
        return PollResult(records)

    def committed(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, Committed]:
        """Returns what the group has committed; partitions without are left out."""
        from kafka import TopicPartition  # noqa: PLC0415  # see admin

        found = {}
        for partition in partitions:
            with self._translated():
                kept = self._client.committed(
                    TopicPartition(*partition), metadata=True, timeout_ms=_ANSWER_MS
                )
            if kept is not None and kept.offset >= 0:
                found[partition] = Committed.parse(kept.offset, kept.metadata)
        return found

    def partitions(self, topics: Iterable[str]) -> list[PartitionId]:
        """Returns all partitions of topics."""
        with self._translated():
            return [
                (topic, number)
                for topic in topics
                for number in sorted(self._client.partitions_for_topic(topic))
            ]

    def bounds(self, partitions: Iterable[PartitionId]) -> dict[PartitionId, tuple[int, int]]:
        """Returns the first offset and the one after the last record of partitions."""
        from kafka import TopicPartition  # noqa: PLC0415  # see admin

        asked = [TopicPartition(*partition) for partition in partitions]
        with self._translated():
            begins = self._client.beginning_offsets(asked, timeout_ms=_ANSWER_MS)
            ends = self._client.end_offsets(asked, timeout_ms=_ANSWER_MS)
        return {partition: (begins[partition], ends[partition]) for partition in asked}

    def seek_to(self, partition: PartitionId, start: Committed) -> bool:
        """Reads a partition from an offset on; False if it is no longer this member's."""
        from kafka import TopicPartition  # noqa: PLC0415  # see admin

        self._notes[partition] = start
        try:
            self._client.seek(TopicPartition(*partition), start.offset)
        except (ValueError, KeyError):
            return False
        return True

    def pause(self, partitions: set[PartitionId]) -> None:
        """Reads no further in exactly these of its partitions."""
        mine = self._client.assignment()
        paused = self._client.paused()
        self._client.pause(*(p for p in mine - paused if p in partitions))
        self._client.resume(*(p for p in paused & mine if p not in partitions))

    def commit(self, offsets: Mapping[PartitionId, int]) -> bool:
        """Commits; returns False if the brokers reject it because of a rebalance.

        Raises:
            GroupRefusedError: The brokers refuse permanently.
        """
        from kafka import errors  # noqa: PLC0415  # see admin

        if not offsets:
            return True
        with self._translated():
            try:
                self._client.commit(self._annotated(offsets), timeout_ms=_ANSWER_MS)
            except (
                errors.RetriableError,
                errors.CommitFailedError,
                errors.RebalanceInProgressError,
                # lost to another member, who reads on from what it finds committed
                errors.UnknownMemberIdError,
                errors.IllegalGenerationError,
            ) as error:
                _log.info("offsets not committed now", error=type(error).__name__)
                return False
        return True

    def close(self) -> None:
        """Commits the committable offsets and leaves the group."""
        with self._translated():
            self._client.close(autocommit=False, timeout_ms=_ANSWER_MS)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        from kafka.errors import KafkaError  # noqa: PLC0415  # see admin

        try:
            yield
        except KafkaError as error:
            cause = type(error.__cause__ or error).__name__
            if error.retriable:
                raise BrokerUnreachableError(
                    "kafka does not answer now",
                    detail=f"{self._bootstrap}: {cause}",
                    hint="headwater status, headwater logs kafka",
                ) from error
            raise GroupRefusedError(
                f"group {self._group} cannot continue to read",
                detail=cause,
                hint="check that this user may read the topics, and may use this group",
            ) from error

    def _annotated(self, offsets: Mapping[PartitionId, int]) -> dict[Any, Any]:
        from kafka import OffsetAndMetadata, TopicPartition  # noqa: PLC0415  # see admin

        return {
            TopicPartition(*partition): OffsetAndMetadata(
                offset, self._notes.get(partition, Committed(offset)).note[:_METADATA_BYTES_MAX]
            )
            for partition, offset in offsets.items()
        }

    def _listener(self, owner: PartitionOwner, handover_s: float) -> Any:
        from kafka import errors  # noqa: PLC0415  # see admin
        from kafka.consumer.subscription_state import (  # noqa: PLC0415
            AsyncConsumerRebalanceListener,
        )

        member = self

        class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, assigned: Any) -> None:
                owner.assigned({tuple(partition) for partition in assigned})

            async def on_partitions_revoked(self, revoked: Any) -> None:
                partitions = {tuple(partition) for partition in revoked}
                owner.release(partitions)
                deadline = time.monotonic() + handover_s
                while not owner.wait_idle(partitions, _SLICE_S) and time.monotonic() < deadline:
                    # gives the loop a turn, so that heartbeats go out meanwhile
                    await member._client.commit_async({})
                try:
                    final = member._annotated(owner.committable(partitions))
                    await member._client.commit_async(final)
                except errors.KafkaError as error:
                    _log.info("offsets not committed at hand-over", error=type(error).__name__)
                owner.forget(partitions)

            async def on_partitions_lost(self, lost: Any) -> None:
                owner.forget({tuple(partition) for partition in lost})

        return Listener()


def topic_ids(bootstrap: str, topics: Sequence[str]) -> dict[str, str]:
    """Returns the id of each topic; a recreated topic has another id.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: One of the topics does not exist.
    """
    found = identities(bootstrap, topics)
    missing = sorted(set(topics) - found.keys())
    if missing:
        raise TopicMissingError(
            f"topic {missing[0]} does not exist",
            detail=", ".join(missing) if len(missing) > 1 else None,
            hint="headwater up creates it",
        )
    return found
