"""Rows of derived views that a store refused, in the quarantine of the real database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.postgres import own_schema
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.quarantine import refused_rows
from projections.changes.quarantine import table as quarantine_table
from projections.changes.quarantine.admin import KeySelection
from projections.changes.quarantine.refused_rows import DeliveredRows, RefusedRow
from projections.definition.views import Store
from projections.errors import QuarantineDownError, QuarantineFullError, UnholdableValueError
from projections.planning.job_config import LedgerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

VIEW = "totals"


class Ledger:
    """What is quarantined of one view in the cache."""

    def __init__(self, connection: psycopg.Connection[Any], dsn: str) -> None:
        self.connection = connection
        self.address = LedgerAddress(dsn, "shop", 3)

    def settle(
        self, *refused: int, written: tuple[int, ...] = (), version: int = 7, below: int = 0
    ) -> None:
        errors = [RefusedRow(key(each), version, UnholdableValueError("no")) for each in refused]
        rows = DeliveredRows(VIEW, errors, [key(each) for each in written], below)
        refused_rows.settle(self.address, Store.CACHE, rows)

    def states(self) -> dict[str, str]:
        found = refused_rows.states(self.connection, "shop", Store.CACHE, [VIEW, "others"])
        return dict(found.get(VIEW, {}))

    def attempts(self) -> dict[str, tuple[int | None, int]]:
        found = quarantine_admin.records(self.connection, "shop", KeySelection())
        return {each.key: (each.version, each.attempts) for each in found}


def key(number: int) -> str:
    return f'{{"id":{number}}}'


@pytest.fixture
def shop(database: str) -> Iterator[Ledger]:
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        yield Ledger(connection, database)


def test_a_row_has_one_record_until_it_is_written(shop: Ledger) -> None:
    shop.settle(1, 2)
    shop.settle(1, version=8)
    assert {key(1): (8, 2), key(2): (7, 1)} == shop.attempts()

    shop.settle(written=(1,))

    assert {key(2): "waiting"} == shop.states()
    assert {(VIEW, "cache"): (1, 0)} == quarantine_admin.counts(shop.connection, "shop")


def test_writing_all_rows_leaves_only_what_is_refused_again(shop: Ledger) -> None:
    shop.settle(1, 2)

    shop.settle(2, version=9, below=9)

    assert {key(2): (9, 2)} == shop.attempts()


def test_an_operator_finds_retries_and_discards_a_row(shop: Ledger) -> None:
    shop.settle(1, 2)
    (listed,) = quarantine_admin.keys(shop.connection, "shop", KeySelection(VIEW, key="1"))
    assert (key(1), UnholdableValueError.code, "no") == (listed.key, listed.code, listed.message)

    assert {(VIEW, "cache", key(1))} == quarantine_admin.retry(
        shop.connection, "shop", KeySelection(key="1")
    )
    assert {key(1): refused_rows.RETRY, key(2): "waiting"} == shop.states()
    # the job has nothing of it to apply as a record of a topic
    assert [] == quarantine_table.due(shop.connection, "shop", Store.CACHE, ["orders"])

    assert (1, 0) == quarantine_admin.drop(shop.connection, "shop", KeySelection(key="2"))
    assert "dropped" == shop.states()[key(2)]
    shop.settle(2, version=8)  # a later change of the row is refused as well
    assert "waiting" == shop.states()[key(2)]
    assert (8, 2) == shop.attempts()[key(2)]


def test_too_many_rows_are_recorded_and_reported(shop: Ledger) -> None:
    shop.settle(1, 2, 3)

    with pytest.raises(QuarantineFullError) as full:
        shop.settle(4)

    assert "4 rows, limit 3" == full.value.detail
    assert 4 == len(shop.states())


def test_a_source_that_does_not_answer_is_named(shop: Ledger) -> None:
    shop.address = LedgerAddress("host=127.0.0.1 port=1 dbname=none", "shop", 3)

    with pytest.raises(QuarantineDownError):
        shop.settle(1)
