"""A worker that starts does not know its connectors yet; nobody may take them for gone."""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc import source
from cdc.connect.errors import ConnectUnavailableError
from cdc.connect.rest import ConnectRest

if TYPE_CHECKING:
    from collections.abc import Callable

    from fix_capture import Captured
    from fix_worker import Worker

pytestmark = [pytest.mark.integration, pytest.mark.fault]

ASKED = ("config", "offsets", "state", "captured_through")


def test_a_connector_is_never_missing_while_its_worker_starts_and_capture_goes_on(
    database: str, capture: Callable[..., Captured], worker: Worker
) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    shop = capture("t", connect_url=worker.url)
    shop.execute("INSERT INTO t VALUES (1)")
    shop.records("t")
    asked, answered = 0, 0
    deadline = time.monotonic() + 120
    with closing(ConnectRest(worker.url, retry_s=0)) as rest:
        while rest.captured_through(shop.spec.connector) is None:
            assert time.monotonic() < deadline, "no offset is stored"
            time.sleep(0.1)
        worker.kill()
        worker.start()
        while answered < len(ASKED):
            assert time.monotonic() < deadline, "the worker does not start"
            answered = 0
            for name in ASKED:
                with suppress(ConnectUnavailableError):
                    assert getattr(rest, name)(shop.spec.connector), f"{name} is missing"
                    answered += 1
                asked += 1
        gone = rest.config("no-such-connector"), rest.offsets("no-such-connector")

    assert len(ASKED) < asked
    assert (None, []) == gone
    assert [] == source.apply(shop.spec)
