"""A store that is away holds up its own query, however long; what nobody can name is given up."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException

from projections.errors import SinkRefusedError, SinkUnavailableError
from projections.job import query_supervisor
from projections.job.query_supervisor import FAILURES_MAX, SupervisedQuery
from projections.job.status import QueryProgress


class Query:
    """A query of which nothing is asked but whether it runs."""

    isActive = True  # noqa: N815  # Spark's own name
    lastProgress = None  # noqa: N815

    def stop(self) -> None:
        self.isActive = False


class Store:
    """Lets its query start once it has failed so often."""

    def __init__(self, failures: int, error: Exception | None) -> None:
        self.failures, self.error = failures, error
        self.tried = 0
        self.stopped = threading.Event()

    def start(self) -> Any:
        self.tried += 1
        if self.tried <= self.failures:
            if self.tried > 100:
                self.stopped.set()
            if self.error is None:
                raise PySparkException("[NOBODY_KNOWS] what this is")
            raise self.error
        self.stopped.set()
        return Query()

    def tend(self) -> SupervisedQuery:
        query = SupervisedQuery("search", self.start, QueryProgress())
        query.run(self.stopped)
        return query


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_supervisor, "_WAITS_S", (0.0,))
    monkeypatch.setattr(query_supervisor, "_TICK_S", 0.0)


def test_a_store_that_comes_back_late_is_written_again() -> None:
    store = Store(50, SinkUnavailableError("the store does not answer"))
    query = store.tend()

    assert 51 == store.tried
    assert query.fault is None
    assert query.query is not None


def test_while_it_is_away_the_code_says_so_and_nothing_is_given_up() -> None:
    store = Store(1_000, SinkUnavailableError("the store does not answer"))
    query = store.tend()

    assert query.fault is None
    assert query.progress.error is not None
    assert SinkUnavailableError.code == query.progress.error.code


def test_what_trying_again_does_not_help_is_given_up_at_once() -> None:
    store = Store(1_000, SinkRefusedError("the store refuses"))
    query = store.tend()

    assert 1 == store.tried
    assert query.fault is not None
    assert SinkRefusedError.code == query.fault.code


def test_what_nobody_has_a_name_for_is_tried_a_few_times() -> None:
    store = Store(1_000, None)
    query = store.tend()

    assert FAILURES_MAX == store.tried
    assert query.fault is not None
    assert "HW-P025" == query.fault.code


def test_a_source_that_ends_a_connection_in_use_is_waited_for() -> None:
    store = Store(50, psycopg.errors.AdminShutdown("terminating connection"))
    query = store.tend()

    assert 51 == store.tried
    assert query.fault is None


def test_what_nobody_foresaw_does_not_end_the_thread_unseen() -> None:
    store = Store(1_000, KeyError("a value that nobody may see"))
    query = store.tend()

    assert FAILURES_MAX == store.tried
    assert query.fault is not None
    assert "HW-P025" == query.fault.code
    assert "KeyError at " in str(query.fault.detail)
    assert "value" not in str(query.fault.detail)
