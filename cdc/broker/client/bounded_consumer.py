"""Kafka's consumer with a limit for every wait for a broker.

The library's consumer (3.0.12) waits for ever for the list of topics, and for the first offset of a
partition, if a broker disappears after it was reached. This module is loaded when a consumer is
opened; see `admin`.
"""

from __future__ import annotations

import time
from typing import Any, Final

from kafka import KafkaConsumer
from kafka.errors import KafkaTimeoutError

ANSWER_S: Final = 30.0
"""Longest wait for an answer: the library's limit for a request."""


class BoundedConsumer(KafkaConsumer):  # type: ignore[misc]  # it has no types
    """Raises `KafkaTimeoutError` where the library's consumer would wait for ever."""

    def position(self, partition: Any, timeout_ms: int | None = None) -> int:
        """Returns the offset of the next record of a partition."""
        wait_ms = int(ANSWER_S * 1000) if timeout_ms is None else timeout_ms
        found: int | None = super().position(partition, timeout_ms=wait_ms)
        if found is None:
            raise KafkaTimeoutError(f"no offset of {partition} within {wait_ms} ms")
        return found

    def _fetch_all_topic_metadata(self) -> None:
        cluster = self._cluster
        deadline = time.monotonic() + ANSWER_S
        if cluster.metadata_refresh_in_progress:  # of fewer topics, perhaps
            self._await_metadata(deadline)
        before = cluster.need_all_topic_metadata
        cluster.need_all_topic_metadata = True
        try:
            self._await_metadata(deadline)
        finally:
            cluster.need_all_topic_metadata = before

    def _await_metadata(self, deadline: float) -> None:
        left_ms = max(1, int((deadline - time.monotonic()) * 1000))
        self._net.run(self._manager.wait_for, self._cluster.request_update(), left_ms)
