"""GlobalShop is the same shop every time, and has the values that break copies."""

from __future__ import annotations

import random

from examples.globalshop.ledger import Ledger, Notes
from examples.globalshop.seed import _make_rows
from headwater.demo.shipped import workloads
from projections.definition.registry import load
from projections.definition.views import ARCHIVED_EVENTS, Store


def rng(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  # not a secret


def test_equal_seeds_make_equal_rows():
    one = _make_rows(rng(7), 0.05)
    two = _make_rows(rng(7), 0.05)
    other = _make_rows(rng(8), 0.05)

    assert one == two
    assert one != other


def test_rows_hold_null_beside_the_empty_text_and_long_beside_short():
    rows = _make_rows(rng(7), 1.0)
    nicknames = {customer.nickname for customer in rows.customers}

    assert {None, ""} <= nicknames
    assert any(not customer.full_name.isascii() for customer in rows.customers)
    assert max(len(product.description or "") for product in rows.products) > 8_000
    assert max(len(customer.preferences) for customer in rows.customers) > 8_000
    assert {None, ""} <= {order.events[0].note for order in rows.orders}


def test_a_transaction_counts_only_once_it_has_committed():
    ledger, done = Ledger(), []
    kept, lost = Notes(), Notes()
    for notes in (kept, lost):
        notes.add("orders", "insert")
        notes.add("order_items", "insert", 3)
        notes.afterwards(done.append, notes)

    ledger.commit(kept)
    ledger.roll_back()

    assert ledger.rows == 4
    assert (ledger.transactions, ledger.rolled_back) == (1, 1)
    assert done == [kept]


def test_each_workload_declares_views_of_every_table_in_every_store():
    for name, make in workloads().items():
        workload = make()
        declared = load(workload.settings_file.parent / "views.py")
        (source,) = declared.sources.values()

        assert workload.name == name
        # what compaction moves there is read beside the events
        captured = set(source.tables) - {ARCHIVED_EVENTS}
        assert {view.table for view in declared.views.values()} == captured
        everywhere = {view.table for view in declared.views.values() if view.to == set(Store)}
        assert everywhere == captured
        assert workload.probe.view in declared.views
