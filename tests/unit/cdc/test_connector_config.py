from __future__ import annotations

import re
from dataclasses import replace

import pytest

from cdc.capture import CaptureSpec
from cdc.connect import converter
from cdc.connect.connector import connector_config, stock_config, table_pattern
from cdc.connect.supervision import cause
from cdc.postgres.address import DatabaseAddress
from cdc.postgres.errors import HostUnknownError
from cdc.table import TableName

DSN = "postgresql://reader:s3cret@db.example:6432/shop?sslmode=verify-full&sslrootcert=/ca.pem"
SPEC = CaptureSpec(
    "shop", DSN, (TableName("public", "orders"),), "http://connect", "kafka:9092", epoch=3
)


def config() -> dict[str, str]:
    return connector_config(SPEC, DatabaseAddress.parse(DSN))


def with_outbox() -> dict[str, str]:
    spec = replace(SPEC, outbox=TableName("eventstore", "outbox"))
    return connector_config(spec, DatabaseAddress.parse(DSN))


def test_the_connector_gets_the_database_of_the_dsn_and_its_tls() -> None:
    found = config()
    assert "db.example" == found["database.hostname"]
    assert "6432" == found["database.port"]
    assert "s3cret" == found["database.password"]
    assert "verify-full" == found["database.sslmode"]
    assert "/ca.pem" == found["database.sslrootcert"]


@pytest.mark.parametrize(
    "dsn", ["host=a,b dbname=x", "postgresql://[", "postgresql://u:s3cret@h:port/x"]
)
def test_a_dsn_that_names_no_one_server_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(HostUnknownError) as refused:
        DatabaseAddress.parse(dsn)
    assert "s3cret" not in f"{refused.value} {refused.value.detail} {refused.value.hint}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exact.type", converter.CLASS),
        ("database.connection.factory.class", converter.CLASS),
        ("value.converter.replace.null.with.default", "false"),
        ("include.unknown.datatypes", "true"),
        ("event.converting.failure.handling.mode", "fail"),
        ("errors.tolerance", "none"),
    ],
)
def test_no_value_is_rounded_replaced_or_left_out(name: str, value: str) -> None:
    assert value == config()[name]


def test_every_record_carries_the_epoch_and_deletes_leave_tombstones() -> None:
    found = config()
    assert "headwater.epoch" == found["transforms.epoch.header"]
    assert "3" == found["transforms.epoch.value.literal"]
    assert "true" == found["tombstones.on.delete"]
    assert "none" == found["skipped.operations"]


def test_the_heartbeat_is_written_and_captured() -> None:
    found = config()
    assert "headwater.heartbeat" in found["heartbeat.action.query"]
    assert r"(?-i:headwater\.heartbeat)" in found["table.include.list"].split(",")


@pytest.mark.parametrize(
    "name", ["orders", "order items", "a,b", 'quo"te', "dot.ted", "br(ack)[et]s", "naïve", "x|y"]
)
def test_a_tables_pattern_matches_that_table_only(name: str) -> None:
    pattern = table_pattern(TableName("public", name))
    assert not re.search(r"(?<!\\),", pattern)  # Debezium splits the list at bare commas
    assert re.fullmatch(pattern, f"public.{name}")
    assert not re.fullmatch(pattern, f"public.{name}s")
    assert not re.fullmatch(pattern, f"Public.{name}")
    assert not re.fullmatch(pattern, f"publicX{name}")


def test_only_rows_of_the_outbox_are_routed_and_only_other_records_get_an_epoch() -> None:
    found = with_outbox()
    assert "epoch,outbox" == found["transforms"]
    assert re.fullmatch(found["predicates.outbox.pattern"], "shop.eventstore.outbox")
    assert not re.fullmatch(found["predicates.outbox.pattern"], "shop.eventstore_outbox")
    assert "outbox" == found["transforms.outbox.predicate"]
    assert ("outbox", "true") == (
        found["transforms.epoch.predicate"],
        found["transforms.epoch.negate"],
    )
    assert r"(?-i:eventstore\.outbox)" in found["table.include.list"].split(",")


def test_bytes_go_out_as_they_are_and_all_else_as_without_an_outbox() -> None:
    found, usual = with_outbox(), config()
    for part in ("key", "value"):
        delegate = f"{part}.converter.delegate.converter.type"
        assert found[f"{part}.converter"].endswith(".BinaryDataConverter")
        assert usual[f"{part}.converter"] == found[delegate]
        for name in ("schemas.enable", "replace.null.with.default"):
            assert usual[f"{part}.converter.{name}"] == found[f"{delegate}.{name}"]


def test_connect_makes_topics_of_messages_only() -> None:
    found = with_outbox()
    made = found["topic.creation.outbox.include"]
    assert re.fullmatch(made, "shop.outbox.order")
    assert not re.fullmatch(made, "shop.public.orders")
    assert int(found["topic.creation.default.replication.factor"]) > 1000
    assert not [name for name in config() if name.startswith("topic.creation")]


def test_generated_columns_and_other_keys_are_named_to_the_connector() -> None:
    orders = TableName("public", "orders")
    found = connector_config(
        SPEC, DatabaseAddress.parse(DSN), keys={orders: ("code",)}, excluded={orders: ("total",)}
    )
    assert r"(?-i:public\.orders\.total)" == found["column.exclude.list"]
    assert r"(?-i)public\x{2e}orders:code" == found["message.key.columns"]


def test_any_name_of_a_key_column_is_carried_through_the_property_that_lists_them() -> None:
    names = ("Order No", "a:b", "a,b", "pay$id", "(id)", "a;b", "ключ", "x\\")
    table = TableName("acme.com", "T:1; x")
    found = connector_config(SPEC, DatabaseAddress.parse(DSN), keys={table: names})
    listed = found["message.key.columns"]

    # as Debezium takes it apart
    (entry,) = listed.split(";")
    entry_form = re.fullmatch(r"\s*([^\s:]+):([^:\s]+)\s*", entry)
    assert entry_form is not None
    pattern, columns = entry_form[1], entry_form[2].split(",")
    assert len(names) == len(columns)
    for name, column in zip(names, columns, strict=True):
        assert java(f"{pattern}.{column}", f"acme.com.T:1; x.{name}")
        assert not java(f"{pattern}.{column}", f"acme.com.T:1; x.{name.upper()}x")


def java(pattern: str, text: str) -> bool:
    """Matches as Java does, whose patterns name a character by its number in another way."""
    numbers = re.sub(r"\\x\{([0-9a-f]+)\}", lambda each: re.escape(chr(int(each[1], 16))), pattern)
    return re.fullmatch(numbers.removeprefix("(?-i)"), text) is not None


def test_stock_sets_nothing_but_what_debezium_cannot_do_without() -> None:
    found = stock_config(SPEC, DatabaseAddress.parse(DSN))
    assert found.items() <= config().items()
    assert not [name for name in found if name.startswith(("max.", "producer.", "poll."))]


def test_a_java_trace_becomes_its_last_cause() -> None:
    trace = (
        "org.apache.kafka.connect.errors.ConnectException: it stopped.\n\tat a.b.C(D.java:1)\n"
        "Caused by: org.postgresql.util.PSQLException: FATAL: no such thing\n\tat e.F(G.java:2)"
    )
    assert "FATAL: no such thing" == cause(trace)
    assert "" == cause(None)
