"""A worker that starts does not know its connectors yet; nobody may take them for gone."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdc import source
from cdc.connect.errors import ConnectUnavailableError
from cdc.connect.rest import ConnectRest
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_worker import Worker

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
    asked = 0
    with closing(ConnectRest(worker.url, retry_s=0)) as rest:
        wait_until(lambda: rest.captured_through(shop.spec.connector), "a stored offset")
        worker.kill()
        worker.start()

        def answered() -> int:
            nonlocal asked
            count = 0
            for name in ASKED:
                with suppress(ConnectUnavailableError):
                    assert getattr(rest, name)(shop.spec.connector), f"{name} is missing"
                    count += 1
                asked += 1
            return count

        wait_until(
            answered,
            "an answer to everything that is asked",
            accept=lambda count: count == len(ASKED),
            timeout_s=LONG_S,
            pause_s=0,
        )
        gone = rest.config("no-such-connector"), rest.offsets("no-such-connector")

    assert len(ASKED) < asked
    assert (None, []) == gone
    assert [] == source.apply(shop.spec)
