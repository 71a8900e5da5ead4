"""Reading up to an offset ends there, goes past what is no record, and gives up on silence."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from cdc.broker.errors import BrokerUnreachableError
from cdc.broker.group.position_search import SearchedPartition
from cdc.broker.reading import span
from cdc.broker.reading.span import up_to


class Partition(NamedTuple):
    topic: str
    partition: int


class Record(NamedTuple):
    offset: int
    key: Any = None
    value: Any = None


PLACE = Partition("t", 0)


class Client:
    """One partition: offsets that have a record, and the others, which are passed over."""

    def __init__(self, offsets, end, at_once=2):
        self.offsets, self.end, self.at, self.at_once = offsets, end, 0, at_once

    def position(self, place):
        assert PLACE == place
        return self.at

    def seek(self, place, offset):
        assert PLACE == place
        self.at = offset

    def poll(self, timeout_ms, max_records=None):  # noqa: ARG002  # as kafka's client
        begin, count = self.at, min(self.at_once, max_records or self.at_once)
        self.at = min(self.end, begin + count)
        found = [Record(n) for n in range(begin, self.at) if n in self.offsets]
        return {PLACE: found} if found else {}


def test_records_are_read_up_to_an_offset():
    client = Client(offsets={0, 1, 4, 6}, end=7)

    polled = [record.offset for _, records in up_to(client, {PLACE: 5}, "t") for record in records]

    assert [0, 1, 4] == polled


def test_a_topic_that_ends_in_what_is_no_record_is_read_to_its_end():
    client = Client(offsets={0}, end=9)

    assert [0] == [r.offset for _, records in up_to(client, {PLACE: 9}, "t") for r in records]
    assert 9 == client.at


def test_no_more_records_come_at_a_time_than_are_wanted():
    client = Client(offsets=range(9), end=9, at_once=9)

    sizes = [len(records) for _, records in up_to(client, {PLACE: 9}, "t", records_max=4)]

    assert [4, 4, 1] == sizes


def test_a_broker_that_gives_nothing_is_reported(monkeypatch):
    monkeypatch.setattr(span, "SILENT_S", 0.0)
    client = Client(offsets={0}, end=1)

    with pytest.raises(BrokerUnreachableError, match="topic t cannot be read"):
        list(up_to(client, {PLACE: 5}, "t"))


def test_a_search_reads_no_record_at_or_after_its_bound():
    search = SearchedPartition.__new__(SearchedPartition)
    search._client, search._partition = Client(offsets=range(9), end=9, at_once=4), PLACE

    assert [2, 3, 4, 5] == [record.offset for record in search._records(2, 6)]
    assert [] == list(search._records(6, 6))
