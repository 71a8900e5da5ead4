"""Who watches a store in the demo reads what a user would read, wherever a switch has put it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headwater.demo import watcher
from headwater.demo.reader import TableProbe, ViewEndpoints
from headwater.demo.watcher import StableRow, Watcher
from headwater.demo.workload import Probe
from projections.publishing.published_versions import Published, stable_path
from projections.publishing.stable_table import StableTable

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 20.0


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return tmp_path / "home" / "tables"


def probe() -> Probe:
    return Probe("stock", {"warehouse": "north", "sku": 7}, "on_hand", "")


def write(tables: Path, place: str, count: int) -> int:
    """Writes the row to a table of the view; returns the table's version."""
    names = ["north", "north", "south"]
    rows = pa.table({"warehouse": names, "sku": [7, 8, 7], "on_hand": [count, -1, -2]})
    write_deltalake(str(tables / place), rows, mode="overwrite")
    return count - 1 if place == "stock" else count - 101


def publish(tables: Path, lsn: int, versions: dict[str, int]) -> Published:
    published = Published(tables, "shop")
    published.publish(1, lsn, versions)
    StableTable(tables, "stock").follow(published)
    return published


def test_the_table_is_watched_at_its_stable_path_where_every_switch_is_seen(tables: Path) -> None:
    row = StableRow(tables, probe())
    seen = []
    for number in (1, 2):
        first, second = write(tables, "stock", number), write(tables, "stock.v2", 100 + number)
        published = publish(tables, number, {"stock": first, "stock.v2": second})
        seen += [row(), row()]
    for place in ("stock.v2", "stock"):
        published.switch({"stock": place})
        StableTable(tables, "stock").follow(published)
        seen += [row(), row()]

    assert [1, 1, 2, 2, 102, 102, 2, 2] == seen


def test_the_table_is_watched_as_soon_as_it_is_there(tables: Path) -> None:
    row = StableRow(tables, probe())
    watching = Watcher(row, row.there)
    watching.start()
    version = write(tables, "stock", 1)
    before = watching.found
    publish(tables, 1, {"stock": version})
    await_reads(watching, 3)
    found = watching.stop()

    assert 0 == before.reads == before.errors
    assert found.clean


def test_what_nobody_should_see_is_counted(tables: Path) -> None:
    answers = iter([5, 6, None, 4, 6])

    def read() -> int | None:
        try:
            return next(answers)
        except StopIteration:
            raise OSError("gone") from None

    watching = Watcher(read)
    watching.start()
    await_reads(watching, 5)
    found = watching.stop()

    assert (5, 1, 1) == (found.reads, found.empties, found.steps_back)
    assert not found.clean


def test_a_table_that_was_opened_has_to_be_read_again_later(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_KEPT_READS", 4)
    row = StableRow(tables, probe())
    publish(tables, 1, {"stock": write(tables, "stock", 1)})
    seen = [row(), row(), row()]
    publish(tables, 2, {"stock": write(tables, "stock", 2)})
    seen += [row()]
    kept_again = [row() for _ in range(3)]
    publish(tables, 3, {"stock": write(tables, "stock", 3)})
    StableTable(tables, "stock").clean(0)

    assert [1, 1, 1, 2] == seen
    assert [2, 2, 2] == kept_again
    with pytest.raises(Exception, match="stock"):
        row()


def test_freshness_of_the_table_is_that_of_the_version_that_readers_see(tables: Path) -> None:
    ask = TableProbe(ViewEndpoints(tables, "", "", "shop:"), probe())
    nothing = ask()
    first, second = write(tables, "stock", 1), write(tables, "stock.v2", 101)
    published = publish(tables, 1, {"stock": first, "stock.v2": second})
    before = ask()
    published.switch({"stock": "stock.v2"})
    after = ask()

    assert [None, 1, 101] == [nothing, before, after]
    assert stable_path(tables, "stock").is_dir()


def await_reads(watching: Watcher, reads: int) -> None:
    polled = threading.Event()
    for _ in range(int(DEADLINE_S / 0.02)):
        if watching.found.reads >= reads:
            return
        polled.wait(0.02)
    raise AssertionError(watching.found)
