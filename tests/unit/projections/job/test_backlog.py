"""The backlog of a query is what Kafka has beyond its last batch, and ends at the present rate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from projections.job.backlog import SAMPLES_KEPT, QueryBacklog, unread_records


def progress(*sources: tuple[str, str]) -> Any:
    found = [SimpleNamespace(latestOffset=latest, endOffset=end) for latest, end in sources]
    return SimpleNamespace(sources=found)


@pytest.mark.parametrize(
    ("latest", "end", "unread"),
    [
        ('{"t":{"0":10,"1":20}}', '{"t":{"0":10,"1":5}}', 15),
        ('{"t":{"0":10},"new":{"0":7}}', '{"t":{"0":10}}', 7),
        ('{"t":{"0":3}}', '{"t":{"0":10}}', 0),  # a topic that was made again
        ("null", '{"t":{"0":10}}', 0),
        ("", "", 0),
    ],
    ids=["one partition", "a new topic", "fewer than were read", "no ends", "before a batch"],
)
def test_records_after_the_last_batch_are_unread(latest: str, end: str, unread: int) -> None:
    assert unread == unread_records(progress((latest, end)))
    assert 2 * unread == unread_records(progress((latest, end), (latest, end)))


def test_the_time_left_follows_from_the_rate_of_the_last_batches() -> None:
    backlog = QueryBacklog(100)
    assert None is backlog.figures()

    backlog.add(10.0, 1_000)
    assert {"records": 1_000, "fewer_per_s": None, "left_s": None} == backlog.figures()
    backlog.add(12.0, 800)
    assert {"records": 800, "fewer_per_s": 100.0, "left_s": 8.0} == backlog.figures()

    for number in range(SAMPLES_KEPT):  # from now on only a tenth as fast
        backlog.add(13.0 + number, 775 - number * 10)
    assert {"records": 685, "fewer_per_s": 10.0, "left_s": 68.5} == backlog.figures()

    backlog.add(100.0, 100)  # the next batch takes them all
    assert None is backlog.figures()


def test_a_query_that_gains_nothing_has_no_end() -> None:
    backlog = QueryBacklog(10)
    backlog.add(0.0, 500)
    backlog.add(5.0, 500)
    assert {"records": 500, "fewer_per_s": 0.0, "left_s": None} == backlog.figures()
    backlog.add(10.0, 700)
    assert {"records": 700, "fewer_per_s": -20.0, "left_s": None} == backlog.figures()

    backlog.clear()
    assert None is backlog.figures()
