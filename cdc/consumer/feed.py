"""Feed: the thread that reads Kafka for a member of a group, and commits for it.

It polls all the time, however long a handler takes, so the group never considers a busy member
dead. The records read ahead are bounded: at the limit it pauses partitions and continues to poll.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from cdc.broker.group.member import Committed, GroupMember, topic_ids
from cdc.broker.group.position_search import SearchedPartition, searching
from cdc.consumer.errors import RecordsGoneError, TopicRecreatedError
from cdc.consumer.parking import forgotten_note, idle_note, settled_note
from cdc.consumer.start import locate
from cdc.errors import CdcError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.broker.topics.extent import PartitionId
    from cdc.consumer.dispatcher import Dispatcher
    from cdc.consumer.parked_topic import ParkedTopic
    from cdc.consumer.parking import Request
    from cdc.consumer.partition_queue import Key
    from cdc.consumer.spec import ConsumerSpec

COMMIT_S: Final = 1.0
"""Interval of commits: changes acknowledged within it may be delivered again after a crash."""

_POLL_S: Final = 0.1
_POLL_FULL_S: Final = 0.005
_END_S: Final = 30.0
_FINISH_S: Final = 10.0
_PAUSE_S: Final = 0.5

_log = structlog.get_logger(__name__)


class Feed:
    """Reads records for a dispatcher.

    Args:
        spec: The consumer.
        dispatcher: Receives the records.
        shelf: The group's parked records.

    Raises:
        BrokerUnreachableError: No broker answers.
        TopicMissingError: A table has no topic.
    """

    def __init__(self, spec: ConsumerSpec, dispatcher: Dispatcher, shelf: ParkedTopic) -> None:
        self._spec = spec
        self._dispatcher = dispatcher
        self._shelf = shelf
        self._topic_ids = topic_ids(spec.kafka_bootstrap, list(spec.topics))
        self._member = GroupMember(
            spec.kafka_bootstrap,
            spec.group,
            list(spec.topics),
            dispatcher,
            session_timeout_s=spec.session_timeout_s,
            handover_s=spec.handover_s,
        )
        self._committed: dict[PartitionId, int] = {}
        self._commit_at = 0.0
        self._under_way: dict[tuple[PartitionId, Key], int] = {}
        self._idle: dict[PartitionId, int] = {}
        self._thread = threading.Thread(target=self._run, name="changes-feed", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self) -> None:
        """Waits until acknowledged changes are committed and the member has left the group."""
        self._thread.join(_END_S)

    def _run(self) -> None:
        try:
            try:
                # until the end: a change in progress at the stop may still be acknowledged
                while not self._dispatcher.closed:
                    self._poll_once()
                self._finish()
            finally:
                self._member.close()
        except BaseException as error:  # noqa: BLE001  # raised again where changes are taken
            self._dispatcher.fail(error)

    def _poll_once(self) -> None:
        try:
            self._read()
        except CdcError as error:
            if not error.retriable:
                raise
            _log.warning("kafka is away, trying on", group=self._spec.group, code=error.code)
            time.sleep(_PAUSE_S)
            return
        self._shelf.look()
        self._follow_pause()
        self._begin_requests()
        self._end_requests()
        if time.monotonic() >= self._commit_at:
            self._commit()

    def _read(self) -> None:
        full = self._dispatcher.overfull()
        self._member.pause(full)
        polled = self._member.poll(_POLL_FULL_S if full else _POLL_S)
        if polled.out_of_range:
            self._refuse_gap(polled.out_of_range)
        for partition, records in polled.records.items():
            self._dispatcher.add(partition, records)
        fresh = self._dispatcher.take_fresh()
        try:
            if fresh:
                self._open(fresh)
        except CdcError:
            self._dispatcher.assigned(fresh)  # opened after the next poll
            raise

    def _open(self, fresh: set[PartitionId]) -> None:
        """Opens assigned partitions: each at its offset, with its parked records."""
        kept = self._member.committed(fresh)
        bounds = self._member.bounds(fresh)
        for partition in sorted(kept):
            self._refuse_other_topic(partition, kept[partition])
            self._refuse_out_of(bounds[partition], partition, kept[partition].offset)
        new = self._begin(sorted(fresh - kept.keys()))
        self._shelf.catch_up()
        self._follow_pause()  # before anything of them is handed out
        for partition, start in {**kept, **new}.items():
            if self._member.seek_to(partition, start):
                self._dispatcher.open(partition, start.offset, self._shelf.of(partition))
        for partition in fresh:
            self._committed.pop(partition, None)
        self._committed |= {partition: start.offset for partition, start in kept.items()}
        if new:
            self._commit()  # so that the start counts once, however soon it crashes

    def _begin(self, topic_partitions: list[PartitionId]) -> dict[PartitionId, Committed]:
        if not topic_partitions:
            return {}
        every = self._member.partitions({topic for topic, _ in topic_partitions})
        began = [
            commit.began_ms
            for commit in self._member.committed(every).values()
            if commit.began_ms is not None
        ]
        began_ms = min(began, default=None)
        now_ms = int(time.time() * 1000)
        found = {}
        with searching(self._spec.kafka_bootstrap) as client:
            for topic_partition in topic_partitions:
                partition = SearchedPartition(client, topic_partition)
                offset = locate(self._spec.start, partition, began_ms)
                topic_id = self._topic_ids[topic_partition[0]]
                found[topic_partition] = Committed(offset, topic_id, began_ms or now_ms)
                _log.info(
                    "partition begun",
                    topic=topic_partition[0],
                    partition=topic_partition[1],
                    offset=offset,
                )
        return found

    def _commit(self) -> bool:
        self._commit_at = time.monotonic() + COMMIT_S
        wanted = self._dispatcher.committable()
        changed = {p: at for p, at in wanted.items() if self._committed.get(p) != at}
        done = self._member.commit(changed)
        if done:
            self._committed |= changed
        return done

    def _finish(self) -> None:
        """Commits the rest; during a rebalance, this takes until its end."""
        self._shelf.flush()
        self._end_requests()
        deadline = time.monotonic() + _FINISH_S
        while not self._commit() and time.monotonic() < deadline:
            self._member.poll(_POLL_S)

    def _begin_requests(self) -> None:
        """Passes operators' requests to the dispatcher, each once."""
        mine = self._dispatcher.partitions()
        asked = {
            (partition, request.key): request
            for partition in mine
            for request in self._asked(partition)
        }
        self._under_way = {
            what: at
            for what, at in self._under_way.items()
            if what in asked and asked[what].at == at
        }
        for what, request in asked.items():
            if what in self._under_way:
                continue
            partition, key = what
            if request.drop:
                everything = request.everything
                done = self._dispatcher.drop(partition, key, request.offset, everything=everything)
            else:
                done = self._dispatcher.retry(partition, key)
            if done:
                self._under_way[what] = request.at

    def _follow_pause(self) -> None:
        """Stops delivery while the group is paused, and records which partitions are idle."""
        pause = self._shelf.pause()
        idle = self._dispatcher.pause(paused=pause is not None)
        if pause is None:
            return
        for partition in idle:
            if self._idle.get(partition) != pause.at:
                self._idle[partition] = pause.at
                self._shelf.write(idle_note(partition, pause))

    def _asked(self, partition: PartitionId) -> Iterable[Request]:
        return self._shelf.requests(partition)

    def _end_requests(self) -> None:
        """Deletes records that are no longer parked, and completed requests."""
        for partition, gone, settled in self._dispatcher.outcomes():
            for offset in gone:
                self._shelf.write(forgotten_note(partition, offset))
            for key in settled:
                if (partition, key) in self._under_way:
                    self._shelf.write(settled_note(partition, key))

    def _refuse_gap(self, wanted: Mapping[PartitionId, int]) -> None:
        bounds = self._member.bounds(wanted)
        for partition, offset in wanted.items():
            self._refuse_out_of(bounds[partition], partition, offset)

    def _refuse_out_of(
        self, bounds: tuple[int, int], topic_partition: PartitionId, offset: int
    ) -> None:
        begin, end = bounds
        if begin <= offset <= end:
            return
        topic, partition = topic_partition
        what = f"topic {topic}, partition {partition}"
        if offset < begin:
            message = f"records that group {self._spec.group} has not had are gone"
            detail = f"{what}: wanted offset {offset}, the earliest there is {begin}"
        else:
            message = f"group {self._spec.group} is beyond the end of a topic"
            detail = f"{what}: wanted offset {offset}, it holds {begin} to {end}"
        raise RecordsGoneError(
            message,
            detail=detail,
            hint="bring the group's data up to date in another way (a snapshot of the "
            "table), then set its offset with cdc.consumer.move",
        )

    def _refuse_other_topic(self, partition: PartitionId, kept: Committed) -> None:
        topic_id = self._topic_ids[partition[0]]
        if kept.topic_id not in (None, topic_id):
            raise TopicRecreatedError(
                f"topic {partition[0]} was recreated since group {self._spec.group} read it",
                detail=f"partition {partition[1]}, offset {kept.offset} of topic {kept.topic_id}; "
                f"it is {topic_id} now",
                hint="set the group's offset in the new topic with cdc.consumer.move",
            )
