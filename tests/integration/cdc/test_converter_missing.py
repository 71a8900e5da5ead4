"""A Kafka Connect that lacks our converter is told from one that is merely out of order."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc import source
from cdc.capture import CaptureSpec
from cdc.connect import connector, converter
from cdc.connect.errors import ConverterMissingError
from cdc.connect.rest import ConnectRest
from cdc.postgres.check import CheckState
from cdc.table import TableName
from headwater.platform.doctor import converter_check

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

NEXT = converter.CLASS.replace(".v1.", ".v999.")


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if this program asked for a form of values that the worker's jar does not have."""
    monkeypatch.setattr(converter, "CLASS", NEXT)
    monkeypatch.setattr(connector, "_VALUES", {**connector._VALUES, **converter.properties()})
    return


def test_a_worker_that_has_it_passes(connect_url: str) -> None:
    assert CheckState.OK is converter_check(connect_url).state


def test_a_worker_with_an_older_one_fails_the_doctor_with_the_file_to_copy(
    connect_url: str, newer: None
) -> None:
    check = converter_check(connect_url)

    assert CheckState.FAIL is check.state
    assert str(converter.JAR) in str(check.hint)


def test_a_worker_with_a_jar_from_before_escaped_topics_fails_the_doctor_of_a_source_that_has_them(
    connect_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CheckState.OK is converter_check(connect_url, escaped_topics=True).state

    missing = converter.TOPIC_NAMES.replace(".v1.", ".v999.")
    monkeypatch.setattr(converter, "TOPIC_NAMES", missing)
    check = converter_check(connect_url, escaped_topics=True)

    assert CheckState.FAIL is check.state
    assert f"class {missing}" == check.detail
    assert str(converter.JAR) in str(check.hint)
    assert CheckState.OK is converter_check(connect_url).state


def test_no_connector_is_registered_where_it_is_missing(
    database: str, connect_url: str, kafka_bootstrap: str, newer: None
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    tables = (TableName("public", "t"),)
    spec = CaptureSpec("unconverted", database, tables, connect_url, kafka_bootstrap)

    try:
        with pytest.raises(ConverterMissingError) as missing:
            source.apply(spec)
    finally:
        source.remove(spec, with_topics=True)

    assert str(converter.JAR) in str(missing.value.hint)
    with closing(ConnectRest(connect_url)) as rest:
        assert rest.config(spec.connector) is None
