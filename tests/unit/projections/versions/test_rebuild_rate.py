"""How long a rebuild takes is told by the newest one that was measured, of the same view first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cdc.table import TableName
from projections.definition import codec
from projections.definition.views import HistoryColumns, MirrorView, Store
from projections.versions.rate_estimate import rate_of, share_of
from projections.versions.version import FillProgress, VersionState, ViewVersion

if TYPE_CHECKING:
    from projections.definition.views import AnyView

ORDERS = MirrorView("orders", "shop", TableName("public", "orders"), (), frozenset({Store.TABLE}))
CUSTOMERS = replace(ORDERS, name="customers")
ITEMS = replace(ORDERS, name="items")
PAST = replace(ORDERS, name="past", history=HistoryColumns())
ASSUMED = 20_000


def made(
    view: AnyView, number: int, day: int, per_s: int, share: float | None = 1.0
) -> ViewVersion:
    return ViewVersion(
        view.name,
        number,
        f"{view.name}.v{number}",
        VersionState.HELD,
        codec.encoded(view),
        replayed=FillProgress({}, None, per_s * 10, 10.0, share),
        made_at=datetime(2026, 11, day, tzinfo=UTC),
    )


# as they are read: by view and number
KNOWN = [made(CUSTOMERS, 2, 9, 900), made(ITEMS, 2, 3, 300), made(PAST, 2, 10, 50)]


@pytest.mark.parametrize(
    ("versions", "view", "per_s", "said"),
    [
        ([*KNOWN, made(ORDERS, 2, 1, 100), made(ORDERS, 3, 2, 200)], ORDERS, 200, "its last"),
        (KNOWN, ORDERS, 900, "the last rebuild of customers"),
        (KNOWN, replace(PAST, name="other"), 50, "the last rebuild of past"),
        (KNOWN, replace(CUSTOMERS, history=HistoryColumns()), 50, "the last rebuild of past"),
        (KNOWN[:2], PAST, ASSUMED, "none was measured: 20,000 changes a second"),
        ([], ORDERS, ASSUMED, "none was measured"),
    ],
    ids=["of the view", "the newest alike", "history", "became a history", "no history", "none"],
)
def test_the_newest_rebuild_of_the_same_view_counts_and_else_the_newest_of_its_kind(
    versions: list[ViewVersion], view: AnyView, per_s: float, said: str
) -> None:
    rate = rate_of(versions, view)

    assert per_s == rate.per_s
    assert said in rate.known_by


def test_what_was_not_replayed_to_its_end_or_too_quickly_tells_nothing() -> None:
    begun = replace(KNOWN[0], replayed=FillProgress({}, {"at": 1}, 10, 100.0, 1.0))
    quick = replace(KNOWN[0], replayed=FillProgress({}, None, 10, 0.2, 1.0))
    torn = replace(KNOWN[0], definition={"kind": "of nobody"})

    assert ASSUMED == rate_of([begun, quick, torn], ORDERS).per_s


def test_a_rate_is_that_of_the_share_that_is_asked_for() -> None:
    half = [made(ORDERS, 2, 1, 1000, 0.5)]

    assert [2000, 1000, 200] == [rate_of(half, ORDERS, share).per_s for share in (1.0, 0.5, 0.1)]
    assert ASSUMED / 2 == rate_of([], ORDERS, 0.5).per_s
    unknown = rate_of([made(ORDERS, 2, 1, 1000, None)], ORDERS, 0.5)
    assert (1000, True) == (unknown.per_s, "share of the time was not recorded" in unknown.known_by)


def test_the_share_of_a_rebuild_that_was_paused_is_that_of_all_its_time() -> None:
    assert share_of(FillProgress({}), 3.0, 0.25) == 0.25
    assert share_of(FillProgress({}, {}, 1, 10.0, 0.5), 30.0, 0.1) == 0.2
    assert share_of(FillProgress({}, {}, 1, 10.0), 30.0, 0.1) is None
