"""A job whose records are gone says which, and does not go on as if nothing had happened."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cdc.broker.client.admin import admin
from cdc.broker.topics import extent
from cdc.column_rule import ColumnRules
from cdc.postgres import session
from cdc.table import TableName
from projections.common.spark_checkpoint import positions
from projections.errors import RecordsLostError
from tests.fix_capture import reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_spark import ViewJob

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


def test_a_job_that_was_away_for_longer_than_the_retention_stops_with_all_facts(
    capture: Callable[..., Captured], view_job: Callable[..., ViewJob], database: str
) -> None:
    from kafka import TopicPartition

    with session.connect(database) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, price numeric, note text)")
        connection.execute("INSERT INTO items SELECT n, n / 7.0, n FROM generate_series(1, 20) n")
    # columns that are hidden are compared in the form in which they leave the source
    rules = {TableName("public", "items"): ColumnRules(hash=["price"], exclude=["note"])}
    captured = capture("public.items", columns=rules, salt="a salt for this test")
    topic = f"{captured.spec.name}.public.items"
    job = view_job(captured, to=("cache",))
    job.start()
    assert job.catch_up() == []
    assert job.stop() == 0
    wanted = positions(job.spec.config.home, captured.spec.name)["query cache"][topic, 0]

    captured.execute("INSERT INTO items SELECT generate_series(21, 40)")
    captured.records("items")
    end = extent.bounds(captured.spec.kafka_bootstrap, [topic])[topic, 0][1]
    with admin(captured.spec.kafka_bootstrap) as client:
        client.delete_records({TopicPartition(topic, 0): end - 5})
    job.start()
    job.wait(lambda said: said["state"] == "failed")

    error = job.status()["error"]
    assert wanted >= 20
    assert (RecordsLostError.code, False) == (error["code"], error["retriable"])
    assert (
        f"topic {topic}, partition 0, wanted offset {wanted}, earliest {end - 5}"
        in (error["detail"])
    )
    assert job.process is not None
    assert job.process.wait(60) == 1

    assert "remove the source's folder of checkpoints" in error["hint"]
    shutil.rmtree(job.spec.config.checkpoint("cache").parent)
    job.start()
    with reading(captured):
        assert job.catch_up() == []
    assert job.stop() == 0
