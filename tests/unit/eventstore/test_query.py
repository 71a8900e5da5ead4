"""Queries and other collections of names: a single text where several names are expected."""

from __future__ import annotations

from datetime import timedelta

import pytest

from eventstore.errors import BatchRefusedError, NameRefusedError, WrongKindError
from eventstore.log import POSITION_MAX, LogPart, StreamPart
from eventstore.memory import MemoryEventLog
from eventstore.model.names import DEFAULT_TENANT
from eventstore.model.query import Condition, Query, QueryItem, tagged
from eventstore.serialization.registry import EventTypes
from eventstore.testing import an_event, append_to
from eventstore.upkeep.retention import RetentionRule

TAGS = frozenset({"email:ada"})


@pytest.mark.parametrize(
    "made",
    [
        lambda: tagged("email:ada", types="registered"),
        lambda: QueryItem(types="registered", tags=TAGS),
        lambda: QueryItem(tags="email:ada"),
        lambda: QueryItem(tags=None),
        lambda: Query(QueryItem(tags=TAGS)),
        lambda: Query(("email:ada",)),
        lambda: Query("abc"),
        lambda: Condition("email:ada", 0),
        lambda: Condition(QueryItem(tags=TAGS), 0),
        lambda: LogPart(query="email:ada"),
        lambda: LogPart(query=None),
        lambda: RetentionRule("order", closing="closed", compact_closed_after=timedelta(1)),
        lambda: RetentionRule("order", drop_archived_after=30),
        lambda: EventTypes().upcaster("customer.registered", 1, personal="email"),
    ],
)
def test_a_single_text_or_another_kind_is_refused_where_several_names_are_expected(made):
    with pytest.raises(WrongKindError) as raised:
        made()

    assert raised.value.hint
    assert "ada" not in f"{raised.value} {raised.value.detail}"


@pytest.mark.parametrize("collection", [list, tuple, set, frozenset, iter])
def test_any_collection_of_names_is_the_same_query(collection):
    expected = tagged("email:ada", types=("user.registered",))

    item = QueryItem(types=collection(["user.registered"]), tags=collection(["email:ada"]))

    assert expected == Query((item,))
    assert expected == Query(collection([item]))
    assert expected == tagged("email:ada", types=collection(["user.registered"]))
    assert hash(expected) == hash(Query([item]))


def test_a_query_from_lists_finds_events_and_guards_an_append():
    log = MemoryEventLog()
    log.append(append_to("user-1", an_event("user.registered", tags=("email:ada",))))
    query = Query([QueryItem(types=["user.registered"], tags=["email:ada"])])

    assert ["user-1"] == [event.stream for event in log.read_log(None, LogPart(query=query))]
    assert ["user-1"] == [e.stream for e in log.read_boundary(DEFAULT_TENANT, query).events]


@pytest.mark.parametrize("tag", ["", "a\0b", 5, None, ["email:ada"]])
def test_an_invalid_tag_is_refused_by_name(tag):
    with pytest.raises(NameRefusedError):
        tagged(tag)


@pytest.mark.parametrize("after", [None, -1, True, "1", POSITION_MAX + 1])
@pytest.mark.parametrize("part", [StreamPart, LogPart, lambda after: Condition(tagged("a"), after)])
def test_a_position_is_a_number_that_the_log_can_give(part, after):
    with pytest.raises(BatchRefusedError):
        part(after=after)
