"""The ledger of what waits, on the real database: idempotent, bounded, and as it was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdc.errors import EnvelopeError
from cdc.postgres import own_schema
from projections.changes.quarantine import admin as quarantine_admin
from projections.changes.quarantine import table as quarantine_table
from projections.changes.quarantine.admin import KeySelection
from projections.changes.quarantine.table import RetryResult
from projections.changes.record import Record
from projections.changes.task_outcome import UnappliedRecord
from projections.definition.views import Store
from projections.errors import (
    KeylessChangeError,
    NoStoredRowError,
    QuarantineDownError,
    QuarantineFullError,
    WaitsBehindError,
)
from projections.planning.job_config import LedgerAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.errors import ProjectionError

pytestmark = pytest.mark.integration

BROKEN = EnvelopeError("record is not JSON")
BEHIND = WaitsBehindError("waits behind")
LACKING = NoStoredRowError("no row has the values")


def waiting(
    offset: int,
    key: int = 1,
    error: Any = BROKEN,
    *,
    value: bytes = b"{",
    version: int | None = None,
) -> UnappliedRecord:
    text = f'{{"id":{key}}}'
    record = Record(text.encode(), value, "1", 0, offset)
    return UnappliedRecord("orders", text, "shop.public.orders", record, version, error)


class Ledger:
    """The ledger of one view in one store."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def put(self, *entries: UnappliedRecord, rows_max: int = 100) -> None:
        quarantine_table.put(self.connection, "shop", Store.CACHE, entries, rows_max)

    def due(self) -> list[int]:
        cases = quarantine_table.due(self.connection, "shop", Store.CACHE, ["orders"])
        return [case.record.offset for case in cases]

    def settle(self, **errors: ProjectionError | None) -> None:
        cases = quarantine_table.due(self.connection, "shop", Store.CACHE, ["orders"])
        verdicts = [RetryResult(case, errors.get(f"at_{case.record.offset}")) for case in cases]
        quarantine_table.settle(self.connection, Store.CACHE, verdicts)

    def records(self) -> dict[int, tuple[str, str, int]]:
        found = quarantine_admin.records(self.connection, "shop", KeySelection())
        return {each.offset: (each.state, each.code, each.attempts) for each in found}

    def held(self) -> Any:
        return quarantine_table.held(self.connection, "shop", Store.CACHE).get("orders")


@pytest.fixture
def shop(database: str) -> Iterator[Ledger]:
    with psycopg.connect(database, autocommit=True) as connection:
        own_schema.ensure(connection)
        yield Ledger(connection)


def test_what_is_written_down_twice_is_there_once(shop: Ledger) -> None:
    for _ in range(2):
        shop.put(waiting(5), waiting(6, error=BEHIND))

    assert {5: ("waiting", "HW-C001", 1), 6: ("waiting", "HW-P043", 0)} == shop.records()
    assert {'{"id":1}'} == set(shop.held().keys)
    assert [] == shop.due()


def test_a_place_that_has_another_record_by_now_is_another_case(shop: Ledger) -> None:
    shop.put(waiting(5))
    quarantine_admin.drop(shop.connection, "shop", KeySelection())

    shop.put(waiting(5, key=2, value=b"of a topic made anew"))

    (record,) = quarantine_admin.records(shop.connection, "shop", KeySelection())
    assert ('{"id":2}', b"of a topic made anew") == (record.key, record.value)


def test_what_was_given_up_stays_so_and_what_waited_behind_it_goes_on(shop: Ledger) -> None:
    shop.put(waiting(5, version=50), waiting(6, error=BEHIND), waiting(7, key=2))

    assert (1, 1) == quarantine_admin.drop(shop.connection, "shop", KeySelection(key="1"))

    assert [6] == shop.due()
    shop.settle()
    shop.put(waiting(5, version=50))
    assert {7: ("waiting", "HW-C001", 1)} == shop.records()
    assert ({'{"id":2}'}, {'{"id":1}': 50}) == (set(shop.held().keys), shop.held().given_up)


def test_what_lacks_a_value_is_tried_when_more_of_its_key_comes(shop: Ledger) -> None:
    shop.put(waiting(5, error=LACKING, version=50), waiting(7, key=2))
    assert [] == shop.due()

    shop.put(waiting(6, error=BEHIND), waiting(8, key=2, error=BEHIND))

    assert [5, 6] == shop.due()
    shop.settle(at_5=LACKING)
    assert [] == shop.due()
    assert ("waiting", "HW-P014", 2) == shop.records()[5]


def test_what_waits_behind_something_that_is_gone_is_tried(shop: Ledger) -> None:
    shop.put(waiting(6, error=BEHIND))

    assert [6] == shop.due()


def test_what_was_swept_is_looked_at_again(shop: Ledger) -> None:
    shop.put(waiting(5, version=50), waiting(6, key=2, version=60))

    quarantine_table.obsolete(shop.connection, "shop", Store.CACHE, {"orders": 60})

    assert [5] == shop.due()


def test_a_read_of_the_table_settles_changes_of_rows_without_a_key(shop: Ledger) -> None:
    unfollowed = KeylessChangeError("a row was changed")
    shop.put(waiting(5, version=50, error=unfollowed), waiting(6, version=60, error=unfollowed))

    quarantine_table.obsolete(shop.connection, "shop", Store.CACHE, {"orders": 60})

    assert [6] == list(shop.records())


def test_few_changes_of_rows_without_a_key_may_wait(
    shop: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_table, "UNFOLLOWED_MAX", 2)
    shop.put(*(waiting(number) for number in range(3)))
    unfollowed = KeylessChangeError("a row was changed")

    with pytest.raises(QuarantineFullError, match="no key") as full:
        shop.put(*(waiting(number, error=unfollowed) for number in range(10, 13)))

    assert ("orders", 3) == (full.value.view, len(shop.records()))
    assert "headwater view resume orders" in str(full.value.hint)


def test_more_than_may_wait_is_refused_as_a_whole(shop: Ledger) -> None:
    shop.put(waiting(1), rows_max=2)

    with pytest.raises(QuarantineFullError, match="orders"):
        shop.put(waiting(2), waiting(3), rows_max=2)

    assert [1] == list(shop.records())


def test_what_could_not_be_read_is_remembered_once_it_is_superseded(shop: Ledger) -> None:
    shop.put(waiting(5))
    quarantine_admin.retry(shop.connection, "shop", KeySelection(key="1"))
    (case,) = quarantine_table.due(shop.connection, "shop", Store.CACHE, ["orders"])
    assert case.seen_lsn > 0

    quarantine_table.settle(shop.connection, Store.CACHE, [RetryResult(case, superseded=True)])
    shop.put(waiting(5))

    assert ({}, None) == (shop.records(), shop.held())


def test_a_database_that_is_away_is_named_without_its_address() -> None:
    with pytest.raises(QuarantineDownError) as refused:
        quarantine_table.connect(LedgerAddress("postgresql://u:secret@127.0.0.1:9/x", "shop", 1))

    assert "secret" not in f"{refused.value} {refused.value.detail}"
