from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.capture import CaptureSpec
from cdc.errors import CaptureSpecError
from cdc.table import TableName
from cdc.topic_names import TopicNames, metric_name

OWN_TOPICS = ["shop.headwater.heartbeat", "shop.headwater.schema_changes"]


def spec(*tables: str, **changes: Any) -> CaptureSpec:
    fields: dict[str, Any] = {
        "name": "shop",
        "dsn": "postgresql://reader:s3cret@db/shop",
        "tables": tuple(TableName.parse(table) for table in tables),
        "connect_url": "http://127.0.0.1:8083",
        "kafka_bootstrap": "127.0.0.1:9092",
    }
    return CaptureSpec(**(fields | changes))


def test_all_names_follow_from_the_sources_name() -> None:
    shop = spec("public.orders")
    assert "headwater_shop" == shop.slot == shop.publication
    assert "headwater-shop" == shop.connector
    assert "shop.transaction" == shop.transaction_topic
    assert ["shop.public.orders", *OWN_TOPICS] == list(shop.table_topics.values())


def test_an_outbox_is_captured_and_has_no_topic_of_its_own() -> None:
    shop = spec("public.orders", outbox=TableName("eventstore", "outbox"))
    assert ["public.orders", "eventstore.outbox"] == [str(table) for table in shop.required]
    assert {*shop.required} < {*shop.captured}
    assert ["shop.public.orders", *OWN_TOPICS] == list(shop.table_topics.values())
    assert "shop.outbox." == shop.outbox_prefix


@pytest.mark.parametrize("table", ["outbox.orders", "outbox_a.orders"])
def test_a_table_whose_topic_could_be_a_messages_is_refused(table: str) -> None:
    with pytest.raises(CaptureSpecError, match="outbox"):
        spec(table, outbox=TableName("eventstore", "outbox"))
    assert spec(table).captured


def test_its_text_does_not_tell_the_password() -> None:
    assert "s3cret" not in repr(spec("orders", connector_dsn="postgresql://u:s3cret@pg/shop"))


@pytest.mark.parametrize("name", ["Shop", "my-shop", "1shop", "", "s" * 54, "shop;drop"])
def test_a_name_that_cannot_be_a_slots_is_refused_before_any_server_is_asked(name: str) -> None:
    with pytest.raises(CaptureSpecError) as refused:
        spec("orders", name=name)
    assert "HW-C004" == refused.value.code


@pytest.mark.parametrize(
    ("one", "other"), [("public.a b", "public.a?b"), ("public.a.b", "public.a_b")]
)
def test_tables_whose_topics_kafka_takes_for_one_are_refused(one: str, other: str) -> None:
    with pytest.raises(CaptureSpecError, match="would share a topic"):
        spec(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("заказ", "товар"), ("a b", "a_b"), ("a.b", "a_b"), ("public_a.b", "public.a_b"), ("-", "+")],
)
def test_they_are_taken_once_one_of_them_has_an_escaped_topic(one: str, other: str) -> None:
    usual = spec(one).table_topics
    both = spec(one, other, escaped_topics=frozenset({TableName.parse(other)})).table_topics
    assert usual.items() < both.items()
    assert len(both) == len({metric_name(topic) for topic in both.values()})


def test_a_topic_of_a_table_that_could_be_a_messages_can_be_escaped() -> None:
    table = TableName("outbox", "orders")
    outbox = TableName("eventstore", "outbox")
    taken = spec(str(table), outbox=outbox, escaped_topics=frozenset({table}))
    assert "shop.-outbox.orders" == taken.table_topics[table]


def test_a_topic_is_escaped_of_a_captured_table_alone() -> None:
    with pytest.raises(CaptureSpecError, match="an escaped topic for a table"):
        spec("orders", escaped_topics=frozenset({TableName("public", "other")}))


_NAMES = st.text(
    st.sampled_from("ab.-_2d ") | st.characters(exclude_categories=["Cs"], min_codepoint=1),
    min_size=1,
    max_size=63,
)


@given(st.lists(st.builds(TableName, _NAMES, _NAMES), min_size=2, max_size=6, unique=True))
def test_escaped_topics_are_names_that_kafka_takes_and_tells_apart(tables: list[TableName]) -> None:
    names = TopicNames("s" * 53, frozenset(tables))
    topics = [names.of(table) for table in tables]
    assert len(tables) == len({metric_name(topic) for topic in topics})
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) for topic in topics)


def test_an_escaped_topic_can_be_read() -> None:
    names = TopicNames("shop", frozenset({TableName("public", "Order Lines")}))
    assert "shop.-public.Order-20-Lines" == names.of(TableName("public", "Order Lines"))
    assert "shop.public.Order_Pages" == names.of(TableName("public", "Order Pages"))


def test_tables_that_differ_by_case_have_topics_of_their_own() -> None:
    assert 4 == len(set(spec("public.Orders", "public.orders").table_topics.values()))


def test_a_table_named_twice_is_refused_and_so_is_none() -> None:
    with pytest.raises(CaptureSpecError, match="twice"):
        spec("orders", "public.orders")
    with pytest.raises(CaptureSpecError, match="no tables"):
        spec()


def test_a_name_too_long_for_a_topic_is_refused() -> None:
    with pytest.raises(CaptureSpecError, match="too long"):
        spec("s" * 63 + "." + "t" * 200)


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("orders", "public", "orders"),
        ("sales.orders", "sales", "orders"),
        ("sales.or.ders", "sales", "or.ders"),
        ('"acme.com".orders', "acme.com", "orders"),
        ('"acme.com".or.ders', "acme.com", "or.ders"),
        ('"say ""hi""".orders', 'say "hi"', "orders"),
        ('public."orders"', "public", '"orders"'),
        ('"orders"', "public", '"orders"'),
    ],
)
def test_every_table_can_be_spelled(text: str, schema: str, name: str) -> None:
    assert TableName(schema, name) == TableName.parse(text)


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_name_is_printed_so_that_it_is_read_as_itself(schema: str, name: str) -> None:
    table = TableName(schema, name)
    assert table == TableName.parse(str(table))
