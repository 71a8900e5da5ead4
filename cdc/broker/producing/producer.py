"""Sending rows in bulk: whole record batches, several under way, one answer for all of them.

Kafka's library has a producer; it spends ten times as long on a record as Postgres needs to write
the row (measured: 38,000 rows a second, against 300,000 here). This module therefore uses only the
library's connections to the brokers, and builds and sends the batches itself. It need not keep the
order of rows, because each row contains its log position.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from cdc.broker.client.admin import named
from cdc.broker.errors import (
    BrokerUnreachableError,
    RecordRefusedError,
    RecordTooLargeError,
    TopicMissingError,
)
from cdc.broker.producing.record_batch import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

RECORD_BYTES_MAX: Final = 48 * 1024 * 1024
"""Largest record that is sent; topics are created with this limit."""

_BATCH_BYTES: Final = 1024 * 1024
_UNDER_WAY_MAX: Final = 3
_ACKNOWLEDGED_BY_ALL: Final = -1
_REQUEST_MS: Final = 30_000
_SLICE_MS: Final = 500
_METADATA_MS: Final = 10_000
_ATTEMPTS_S: Final = 60.0
_PAUSE_S: Final = 0.2
_VERSION_MAX: Final = 9  # later ones name a topic by an id


class Producer:
    """Sends records; partitions follow the keys as the connector's do. One thread may use it.

    At most four batches are in memory, or one record where that is larger.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._lanes: dict[str, list[_PartitionBuffer]] = {}
        self._batches_sent = 0
        self._under_way: deque[_Sent] = deque()
        self._given_up = False

    def expect(self, topics: Iterable[str]) -> None:
        """Lets the next metadata request cover several topics, instead of one request for each.

        Args:
            topics: Topics that may be opened later; a missing one is an error only then.
        """
        for topic in topics:
            self._client.cluster.add_topic(topic)

    def open(self, topic: str, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Opens a topic, and sets the headers of its records.

        Raises:
            TopicMissingError: The topic does not exist.
        """
        count = len(self._partitions(topic))
        self._lanes[topic] = [_PartitionBuffer(topic, number, headers) for number in range(count)]

    def send(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Adds a record for an open topic; `flush` confirms its arrival.

        Raises:
            RecordTooLargeError: It exceeds the limit of the brokers.
            RecordRefusedError: The brokers refused earlier records.
        """
        if len(value) > RECORD_BYTES_MAX:
            raise RecordTooLargeError(
                f"a record is too large for topic {topic}",
                detail=f"{len(value):,} bytes, {RECORD_BYTES_MAX:,} at most",
            )
        lanes = self._lanes[topic]
        lane = lanes[0] if len(lanes) == 1 else lanes[self._number(key, len(lanes))]
        lane.batch.add(key, value)
        if lane.batch.size_bytes >= _BATCH_BYTES:
            self._hand_over(lane)

    def flush(self) -> None:
        """Waits until the brokers have acknowledged everything that was sent.

        Raises:
            RecordRefusedError: They refused some; none of the records counts as sent.
        """
        for lanes in self._lanes.values():
            for lane in lanes:
                if lane.batch.count:
                    self._hand_over(lane)
        while self._under_way:
            self._settle()

    def give_up(self) -> None:
        """Ends a wait for the brokers at once; may be called from any thread."""
        self._given_up = True

    def _hand_over(self, lane: _PartitionBuffer) -> None:
        self._batches_sent += 1  # records without a key change their partition with each batch
        while len(self._under_way) >= _UNDER_WAY_MAX:
            self._settle()
        sent = _Sent(lane.topic, lane.partition, lane.batch.take(), time.monotonic() + _ATTEMPTS_S)
        sent.answer = self._request(sent)
        self._under_way.append(sent)

    def _settle(self) -> None:
        """Waits for the oldest batch; retries it while that can help."""
        from kafka.errors import KafkaError, NoError, for_code  # noqa: PLC0415

        sent = self._under_way.popleft()
        while True:
            reason: Any = "no leader"
            with suppress(KafkaError):
                if sent.answer is not None:
                    self._await(sent.answer)
                    if sent.answer.succeeded():
                        code = sent.answer.value.responses[0].partition_responses[0].error_code
                        reason = for_code(code)
                        if reason is NoError:
                            return
                    else:
                        reason = type(sent.answer.exception)
            over = self._given_up or time.monotonic() > sent.deadline
            if over or not getattr(reason, "retriable", True):
                raise RecordRefusedError(
                    f"kafka did not acknowledge records of topic {sent.topic}",
                    detail=getattr(reason, "__name__", str(reason)),
                    hint="headwater logs kafka",
                )
            time.sleep(_PAUSE_S)
            self._refresh()
            sent.answer = self._request(sent)

    def _await(self, answer: Any) -> None:
        deadline = time.monotonic() + _REQUEST_MS / 1000
        while not (answer.is_done or self._given_up or time.monotonic() > deadline):
            self._client.poll(timeout_ms=_SLICE_MS, future=answer)

    def _request(self, sent: _Sent) -> Any:
        from kafka import TopicPartition  # noqa: PLC0415  # see admin
        from kafka.errors import KafkaError  # noqa: PLC0415
        from kafka.protocol.producer import ProduceRequest  # noqa: PLC0415

        place = TopicPartition(sent.topic, sent.partition)
        leader = self._client.cluster.leader_for_partition(place)
        if leader is None or leader == -1:
            return None
        in_topic = ProduceRequest.TopicProduceData
        part = in_topic.PartitionProduceData(index=sent.partition, records=sent.batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=_ACKNOWLEDGED_BY_ALL,
            timeout_ms=_REQUEST_MS,
            topic_data=[in_topic(name=sent.topic, partition_data=[part])],
            max_version=_VERSION_MAX,
        )
        with suppress(KafkaError):
            self._client.await_ready(leader, timeout_ms=_METADATA_MS)
            answer = self._client.send(leader, request)
            self._client.poll(timeout_ms=0)  # on its way while the next one is built
            return answer
        return None

    def _refresh(self) -> None:
        from kafka.errors import KafkaError  # noqa: PLC0415

        with suppress(KafkaError):
            self._client.poll(timeout_ms=_METADATA_MS, future=self._client.cluster.request_update())

    def _partitions(self, topic: str) -> set[int]:
        cluster = self._client.cluster
        deadline = time.monotonic() + _METADATA_MS / 1000
        self._client.poll(timeout_ms=_METADATA_MS, future=cluster.add_topic(topic))
        while not (found := cluster.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                raise TopicMissingError(
                    f"topic {topic} does not exist", hint="headwater up creates it"
                )
            time.sleep(_PAUSE_S)
            self._refresh()
        return set(found)

    def _number(self, key: bytes | None, count: int) -> int:
        from kafka.partitioner.default import murmur2  # noqa: PLC0415

        if key is None:
            return self._batches_sent % count
        return int((murmur2(key) & 0x7FFFFFFF) % count)


class _PartitionBuffer:
    """Records to be sent to one partition."""

    def __init__(self, topic: str, partition: int, headers: Sequence[tuple[str, bytes]]) -> None:
        self.topic = topic
        self.partition = partition
        self.batch = RecordBatch(headers)


class _Sent:
    """A batch in flight; kept until it is acknowledged."""

    def __init__(self, topic: str, partition: int, batch: bytes, deadline: float) -> None:
        self.topic = topic
        self.partition = partition
        self.batch = batch
        self.deadline = deadline
        self.answer: Any = None


def load() -> None:
    """Loads kafka's library: threads that did so at the same time could wait for each other."""
    import kafka.net.compat  # noqa: PLC0415  # see admin
    import kafka.protocol.producer  # noqa: F401, PLC0415


@contextmanager
def producer(bootstrap: str) -> Iterator[Producer]:
    """Opens a producer.

    Raises:
        BrokerUnreachableError: No broker answers.
    """
    from kafka.errors import KafkaError  # noqa: PLC0415
    from kafka.net.compat import KafkaNetClient  # noqa: PLC0415

    with named(bootstrap):
        client = KafkaNetClient(bootstrap_servers=bootstrap.split(","), client_id="headwater")
        # a metadata request must not create a missing topic with the broker's default settings
        client.cluster.config["allow_auto_create_topics"] = False
        try:
            try:
                client.check_version(timeout_ms=_METADATA_MS)
            except KafkaError as error:
                raise BrokerUnreachableError(
                    "kafka does not answer",
                    detail=f"{bootstrap}: {type(error).__name__}",
                    hint="headwater status, headwater logs kafka",
                ) from None
            yield Producer(client)
        finally:
            client.close()
