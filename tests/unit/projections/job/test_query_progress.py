"""What a query says of its batches: counted once each, with the time that the last one took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from projections.job.status import QueryProgress


def told(batch: int, **phases: int) -> Any:
    return SimpleNamespace(batchId=batch, durationMs=phases, sources=[])


def test_batches_of_the_archive_count_what_they_have_added() -> None:
    progress = QueryProgress()

    progress.archived(0, 40)
    progress.archived(1, 0)

    figures = progress.figures()
    assert (2, 40) == (figures["batches"], figures["records"])
    assert 1 == figures["last_batch"]["batch_id"]


def test_spark_is_asked_for_the_time_of_each_batch_until_it_has_told() -> None:
    progress = QueryProgress()
    assert not progress.phases_wanted

    progress.archived(4, 1)
    assert progress.phases_wanted
    progress.time_spent(told(3, addBatch=1))  # of the batch before
    assert progress.phases_wanted
    progress.time_spent(told(4, addBatch=2))
    assert not progress.phases_wanted
    assert {"addBatch": 2} == progress.figures()["phases_ms"]

    progress.archived(0, 1)  # a checkpoint that was set aside
    assert progress.phases_wanted
    progress.time_spent(told(0, addBatch=3))
    assert {"addBatch": 3} == progress.figures()["phases_ms"]
