"""The tables' query of a job over the topic of one view, without the rest of the job."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from cdc.change_event import EPOCH_HEADER
from projections.changes.record import OLD_KEY_HEADER
from projections.common import spark_checkpoint
from projections.definition.views import Store
from projections.job import streaming_query
from projections.job.active_plans import ActivePlans
from projections.job.streaming_query import BatchContext
from projections.planning.job_spec import JobSpec
from projections.publishing.published_versions import Published
from projections.stores.delta.sink import WarehouseSink
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from projections.changes.record import Record
    from projections.planning.job_config import JobConfig
    from projections.planning.view_plan import ViewPlan


class Idle:
    """What a batch asks before it is written: nothing is quarantined, and no table changes."""

    @staticmethod
    def writing() -> Any:
        return nullcontext()

    @staticmethod
    def held() -> dict[str, Any]:
        return {}

    @staticmethod
    def changed() -> None:
        """Reads nothing again."""

    @staticmethod
    def look() -> bool:
        return False


class TablesQuery:
    """The tables' query, over the view's topic."""

    def __init__(self, session: SparkSession, config: JobConfig, plan: ViewPlan) -> None:
        self._session = session
        self._plan = plan
        self._spec = JobSpec(config, plans=(plan,))
        spark_checkpoint.adopt(config.checkpoint(Store.TABLE).parent)
        WarehouseSink(config.addresses.tables).prepare(plan)
        self.batches: list[list[dict[str, Any]]] = []

    def run(self) -> None:
        """Writes what the topic has."""
        idle: Any = Idle()
        context = BatchContext(idle, ActivePlans(self._spec.plans), idle, lambda _: None)
        query = streaming_query.start_query(
            self._session,
            self._spec,
            Store.TABLE,
            context,
            lambda _, counters: self.batches.append(counters),
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def rows(self) -> list[dict[str, Any]]:
        tables = WarehouseSink(self._spec.config.addresses.tables)
        return sorted(tables.documents(self._plan), key=lambda row: row["id"])

    def waiting(self) -> int:
        """Returns how many records wait for a boundary."""
        config = self._spec.config
        beyond = Published(config.addresses.tables, config.source).beyond()
        return sum(len(records) for _, records in beyond.waiting)


def send(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Sends records to a topic."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for record in records:
        assert record.epoch is not None
        headers = [(EPOCH_HEADER, record.epoch.encode())]
        if record.old_key is not None:
            headers.append((OLD_KEY_HEADER, record.old_key))
        producer.send(topic, record.value, record.key, headers)
    producer.flush(LONG_S)
    producer.close()
