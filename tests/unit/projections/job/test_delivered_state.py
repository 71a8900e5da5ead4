"""From where a derived view is delivered to a store that has some version of it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from projections.incremental.delivery import COMMITS_MAX, DeliveredState
from projections.job.tasks.derived_stores import _after

HAD = DeliveredState("table", 7, 1, 100, "form", "place")


def test_changes_are_delivered_since_the_version_that_the_store_has() -> None:
    assert 7 == _after(HAD, replace(HAD, version=9, lsn=200))


@pytest.mark.parametrize(
    "wanted",
    [
        replace(HAD, table="another"),
        replace(HAD, form="another"),
        replace(HAD, place="another"),
        replace(HAD, version=6),
        replace(HAD, version=8 + COMMITS_MAX),
    ],
)
def test_all_rows_are_delivered_to_a_store_that_has_another_table_form_or_place(
    wanted: DeliveredState,
) -> None:
    assert _after(HAD, wanted) is None
    assert _after(None, wanted) is None


def test_all_rows_are_delivered_where_an_earlier_release_only_counted_refused_rows() -> None:
    text = b'{"table":"table","version":7,"epoch":1,"lsn":100,"form":"form","place":"place"%s}'
    former, present = (
        msgspec.json.decode(text % more, type=DeliveredState) for more in (b',"refused":2', b"")
    )

    assert _after(former, replace(HAD, version=9)) is None
    assert 7 == _after(present, replace(HAD, version=9))
