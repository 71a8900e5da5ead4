"""What is told of a view's state is what its table has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.definition.columns import DELETED_FIELD
from projections.definition.views import DerivedView, Store
from projections.publishing.published_content import TableVersion
from projections.publishing.published_versions import Published
from projections.stores.delta.derived_table import DerivedTable
from projections.stores.delta.table_stats import states, version_stats
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

START = datetime(2026, 11, 24, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("window_start", pa.timestamp("us", "UTC")),
        ("count", pa.int64()),
        (DELETED_FIELD, pa.bool_()),
    ]
)
BATCHES = st.lists(
    st.dictionaries(st.integers(0, 500), st.none() | st.integers(0, 9), min_size=1, max_size=6),
    min_size=1,
    max_size=4,
)


def write(root: Path, batch: dict[int, int | None], number: int) -> None:
    rows = [(START + timedelta(minutes=m), n, n is None) for m, n in batch.items()]
    named = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]
    given = pa.Table.from_pylist(named, SCHEMA)
    DerivedTable(root, "v", ("window_start",)).write(given, number, replaces_all=number == 0)


@settings(max_examples=examples(25), deadline=None)
@given(batches=BATCHES)
def test_rows_and_times_are_those_of_the_version(
    batches: list[dict[int, int | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tables")
    seen, there = [], dict[int, int | None]()
    for number, batch in enumerate(batches):
        write(root, batch, number)
        there |= batch
        there = {minute: count for minute, count in there.items() if count is not None}
        seen.append((DeltaTable(str(root / "v")).version(), sorted(there)))

    for version, minutes in seen:
        found = version_stats(root, "v", version)
        ends = (minutes[0], minutes[-1]) if minutes else ()
        assert len(minutes) == found.rows
        assert [START + timedelta(minutes=end) for end in ends] == [
            time for time in (found.oldest, found.newest) if time is not None
        ]
        assert found.disk_bytes > found.size_bytes


def test_a_view_tells_what_it_was_made_from_and_how_long_it_changes(tmp_path: Path) -> None:
    write(tmp_path, {1: 1, 2: 5}, 0)
    for name in ("orders", "late.2"):
        named = [{"window_start": START, "count": 1, DELETED_FIELD: False}]
        DerivedTable(tmp_path, name, ("window_start",)).write(
            pa.Table.from_pylist(named, SCHEMA), 1, replaces_all=True
        )
    view = DerivedView(
        "v", ("window_start",), frozenset([Store.TABLE]), ("orders", "late"), limit="5 minutes"
    )
    published = Published(tmp_path, "shop")
    version = published.publish(1, 10, {"orders": 1}, complete=False)
    assert version is not None
    made = TableVersion(1, 1, 10, {"orders": 1, "late.2": 1})
    published.complete(version, {"v": made})
    latest = published.latest()
    assert latest is not None

    (found,) = states(
        tmp_path, latest, {}, {"v": view}, {"v": {"strategy": "keyed", "by": ["window_start"]}}
    )

    assert ("v", "by window_start", "5 minutes") == (found.view, found.way, found.limit)
    assert {"orders": 1, "late": 1} == found.reads
    assert (2, START + timedelta(minutes=1)) == (found.kept.rows, found.kept.oldest)
    assert START + timedelta(minutes=2) == found.kept.newest
