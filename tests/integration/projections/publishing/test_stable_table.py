"""The stable path of a view equals what is published of it, whatever became of its tables."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, write_deltalake
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.reading import sql
from projections.errors import LogUnreadableError
from projections.job.tasks.stable_tables import StableTablesTask
from projections.publishing import stable_table
from projections.publishing.published_content import TableVersion
from projections.publishing.published_versions import Published, stable_path
from projections.publishing.stable_table import StableTable
from projections.stores.delta.table_format import CONFIGURATION, FEED
from tests.fix_seeds import examples
from tests.programs import killed_show
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KEYS = 10
SWITCHES = 50
FORM = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("odd", pa.bool_())])


def rows_of(path: Path | str, version: int | None = None) -> list[dict[str, Any]]:
    found = DeltaTable(str(path), version=version).to_pyarrow_table().to_pylist()
    return sorted(found, key=repr)


class Place:
    """A table of a view, to which anything is done that writers do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = 0
        self.again()

    def again(self) -> None:
        """Makes the table anew; its versions are counted from the start."""
        if self.path.exists():
            shutil.rmtree(self.path)
        configuration = {**CONFIGURATION, **(FEED if self.made % 2 else {})}
        parts = ["odd"] if self.made % 3 == 1 else None
        DeltaTable.create(
            str(self.path), FORM, configuration=dict(configuration), partition_by=parts
        )

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    @property
    def version(self) -> int:
        return self.table.version()

    def rows(self, count: int) -> pa.Table:
        self.made += 1
        ids = [(self.made * 7 + each) % 12 for each in range(count)]
        odd = [each % 2 == 1 for each in ids]
        return pa.table({"id": ids, "n": [self.made] * count, "odd": odd}, FORM)

    def append(self) -> None:
        write_deltalake(str(self.path), self.rows(3), mode="append", schema_mode="merge")

    def merge(self) -> None:
        merger = self.table.merge(self.rows(4), "t.id = s.id", "s", "t")
        merger = merger.when_matched_update({"n": "s.n"})
        merger.when_not_matched_insert({"id": "s.id", "n": "s.n", "odd": "s.odd"}).execute()

    def delete(self) -> None:
        self.table.delete("id % 3 = 0")

    def replace(self) -> None:
        rows = self.rows(5)
        write_deltalake(str(self.path), rows, mode="overwrite", schema_mode="overwrite")

    def compact(self) -> None:
        self.table.optimize.compact()

    def widen(self) -> None:
        self.made += 1
        self.table.alter.add_columns([Field(f"extra_{self.made}", PrimitiveType("string"))])

    def forget_log(self) -> None:
        """Removes what its log's cleaning removes when a day is over."""
        self.table.create_checkpoint()
        for number in range(self.version):
            (self.path / "_delta_log" / f"{number:020}.json").unlink(missing_ok=True)

    def vacuum(self) -> None:
        self.table.vacuum(0, enforce_retention_duration=False, dry_run=False)


DONE = (Place.append, Place.append, Place.merge, Place.merge, Place.delete, Place.replace)
DONE_TOO = (Place.compact, Place.widen, Place.forget_log, Place.vacuum, Place.again)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["things", "things.v2"]),
        st.lists(st.sampled_from(DONE + DONE_TOO), max_size=4),
    ),
    min_size=2,
    max_size=10,
)


@given(steps=STEPS)
@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_it_equals_the_table_at_that_version_whatever_was_done(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[str, list[Callable[[Place], None]]]],
) -> None:
    monkeypatch.setattr(stable_table, "COMMITS_PER_CHECKPOINT", 3)
    monkeypatch.setattr(stable_table, "CHECKPOINTS_PER_CLEANING", 1)
    tables = tmp_path_factory.mktemp("home") / "tables"
    places = {name: Place(tables / name) for name in ("things", "things.v2")}
    stable = StableTable(tables, "things")
    before: tuple[int, list[dict[str, Any]]] | None = None
    opened: DeltaTable | None = None

    for number, (name, done) in enumerate(steps, 1):
        for what in done:
            what(places[name])
        shown = stable.publish(name, TableVersion(places[name].version, 1, number), number)
        wanted = rows_of(places[name].path)
        columns = DeltaTable(str(places[name].path)).schema().fields

        assert shown is not None
        assert (name, places[name].version) == (shown.place, shown.version)
        assert wanted == rows_of(stable.path)
        assert columns == DeltaTable(str(stable.path)).schema().fields
        assert shown == StableTable(tables, "things").content()
        if before is not None:
            assert before[1] == rows_of(stable.path, before[0])
        if opened is None:
            opened = DeltaTable(str(stable.path))
        opened.update_incremental()
        assert wanted == sorted(opened.to_pyarrow_table().to_pylist(), key=repr)
        before = DeltaTable(str(stable.path)).version(), wanted


def boundary(number: int) -> TableVersion:
    return TableVersion(number, 1, number)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two versions of a view, each with four versions of its table."""
    tables = tmp_path / "home" / "tables"
    for name, parts in (("things", None), ("things.v2", ["odd"])):
        place = Place(tables / name)
        shutil.rmtree(place.path)
        for number in range(5):
            ids = list(range(number + 1))
            rows = {"id": ids, "n": [number] * len(ids), "odd": [each % 2 == 1 for each in ids]}
            mode = "overwrite" if number % 2 else "append"
            write_deltalake(str(place.path), pa.table(rows, FORM), mode=mode, partition_by=parts)
    return tables


def test_it_does_not_go_back_unless_told_to(tables: Path) -> None:
    stable = StableTable(tables, "things")
    stable.publish("things", boundary(2), 2)
    behind = stable.publish("things.v2", boundary(1), 3)
    same = stable.publish("things", boundary(2), 4)
    commits = DeltaTable(str(stable.path)).version()
    told = stable.publish("things.v2", boundary(1), 3, backwards=True)

    assert behind is not None
    assert ("things", 2) == (behind.place, behind.version)
    assert behind == same
    assert commits == 0
    assert told is not None
    assert ("things.v2", 1) == (told.place, told.version)
    assert rows_of(tables / "things.v2", 1) == rows_of(stable.path)


def test_its_history_says_which_version_it_showed_at_which_boundary(tables: Path) -> None:
    stable = StableTable(tables, "things")
    stable.publish("things", boundary(1), 7)
    (newest,) = DeltaTable(str(stable.path)).history(1)

    assert {"place": "things", "version": "1", "number": "7", "boundary": "0/1"} == {
        name: newest["operationParameters"][name]
        for name in ("place", "version", "number", "boundary")
    }


def test_it_is_read_where_the_home_has_moved_and_where_no_links_can_be_made(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another filesystem")

    stable = StableTable(tables, "things")
    stable.publish("things", boundary(1), 1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refuse)
        stable.publish("things", boundary(4), 2)
    wanted = rows_of(tables / "things", 4)
    moved = tables.parent.rename(tables.parent.with_name("elsewhere"))
    shutil.rmtree(moved / "tables" / "things")
    path = str(stable_path(moved / "tables", "things"))
    engine = QueryBuilder().register("t", DeltaTable(path))

    assert wanted == rows_of(path)
    assert len(wanted) == len(DeltaTable(path).to_pandas())
    counted = pa.table(engine.execute("SELECT count(*) AS c FROM t").read_all())
    assert [{"c": len(wanted)}] == counted.to_pylist()


def test_what_somebody_else_writes_to_it_goes_and_what_a_power_cut_tore_is_mended(
    tables: Path,
) -> None:
    stable = StableTable(tables, "things")
    stable.publish("things", boundary(1), 1)
    write_deltalake(str(stable.path), Place(tables / "other").rows(3), mode="append")
    stable.publish("things", boundary(2), 2)
    after_write = rows_of(stable.path)
    (stable.path / "_delta_log" / f"{2:020}.json").write_bytes(b"")
    StableTable(tables, "things").publish("things", boundary(2), 2)
    mended = rows_of(stable.path)
    (stable.path / "_delta_log" / f"{1:020}.json").write_bytes(b"{")
    (stable.path / "_delta_log" / f"{2:020}.json").write_bytes(b"{")

    assert rows_of(tables / "things", 2) == after_write == mended
    with pytest.raises(LogUnreadableError):
        StableTable(tables, "things").publish("things", boundary(3), 3)


def test_what_has_to_be_forgotten_is_nowhere_below_it(tables: Path) -> None:
    stable = StableTable(tables, "things")
    place = tables / "things"
    canary = "canary-8861"
    rows = pa.table({"id": [100], "n": [1], "odd": [False], "name": [canary]})
    write_deltalake(str(place), rows, mode="append", schema_mode="merge")
    stable.publish("things", boundary(5), 5)
    seen = [path for path in stable.path.rglob("*") if holds(path, canary)]
    DeltaTable(str(place)).delete("id = 100")
    stable.publish("things", boundary(6), 6)
    stable.clean(0)

    assert seen
    assert [] == [path for path in stable.path.rglob("*") if holds(path, canary)]
    assert rows_of(place) == rows_of(stable.path)


def test_one_that_cannot_be_shown_holds_up_no_other_and_is_tried_again(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projections.job.tasks.stable_tables._AGAIN_S", 0.0)
    published, showcase = Published(tables, "shop"), StableTablesTask(tables, "shop")
    showcase.round()
    log = tables / "things" / "_delta_log" / f"{2:020}.json"
    shutil.copytree(tables / "things.v2", tables / "others")
    kept = log.rename(log.with_suffix(".away"))
    published.publish(1, 1, {"things": 3, "things.v2": 3, "others": 3})
    showcase.round()
    failing = dict(showcase.failing)
    nothing = StableTable(tables, "things").content()
    others = rows_of(stable_path(tables, "others"))
    kept.rename(log)
    showcase.round()

    assert {"things": "HW-P121"} == failing
    assert nothing is None
    assert rows_of(tables / "others", 3) == others
    assert {} == showcase.failing
    assert rows_of(tables / "things", 3) == rows_of(stable_path(tables, "things"))
    assert ["others", "things"] == sorted(
        path.name for path in stable_path(tables, "").iterdir() if path.is_dir()
    )


def test_a_table_that_was_open_while_all_of_its_log_was_replaced_goes_on(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stable_table, "COMMITS_PER_CHECKPOINT", 2)
    stable = StableTable(tables, "things")
    stable.publish("things", boundary(0), 1)
    opened = DeltaTable(str(stable.path))
    for version in (1, 2, 3, 4):
        stable.publish("things", boundary(version), version)
    stable.clean(0)
    opened.update_incremental()

    assert rows_of(tables / "things", 4) == sorted(opened.to_pyarrow_table().to_pylist(), key=repr)


def holds(path: Path, text: str) -> bool:
    return path.is_file() and text.encode() in path.read_bytes()


@pytest.mark.parametrize(
    ("place", "commits"),
    [("things", 1), ("things.v2", 2)],
    ids=["same place", "switched and tidied"],
)
def test_a_process_killed_at_any_point_leaves_what_was_or_what_is(
    tables: Path, place: str, commits: int
) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.programs.killed_show"])
    published = Published(tables, "shop")
    for version in range(commits):
        published.publish(1, version + 1, {"things": version, "things.v2": version})
        StableTable(tables, "things").follow(published)
    published.publish(1, 9, {"things": 3, "things.v2": 3})
    published.switch({"things": place})
    before, wanted = rows_of(stable_path(tables, "things")), rows_of(tables / place, 3)
    seen = []

    for step in range(90):
        copied = shutil.copytree(tables.parent, tables.parent.with_name(f"copy {step}")) / "tables"
        path = stable_path(copied, "things")
        args = (copied, "shop", "things", step)
        process = processes.Process(target=killed_show.show, args=args)
        process.start()
        process.join(60)
        seen.append(rows_of(path))
        again = StableTable(copied, "things")
        again.follow(Published(copied, "shop"))

        assert wanted == rows_of(path)
        again.clean(0)
        assert wanted == rows_of(path)
        assert left_over(path) == set()
        if process.exitcode == 0:
            break
    assert process.exitcode == 0
    assert seen.index(wanted) > 3
    assert all(each in (before, wanted) for each in seen)
    assert wanted in seen[:-1]


def left_over(path: Path) -> set[str]:
    """Files below a table's folder that are neither its log nor its rows."""
    files = {file.name for file in path.rglob("*") if "_delta_log" not in file.parts}
    named = {uri.rpartition("/")[2] for uri in DeltaTable(str(path)).file_uris()}
    return {name for name in files - named if "." in name and name != "things.v2"}


class Reader(threading.Thread):
    """Reads the stable path again and again; every answer has to be whole, and no older."""

    def __init__(self, tables: Path, way: str, ended: threading.Event) -> None:
        super().__init__(name=way)
        self.reads = 0
        self.wrong: list[str] = []
        self._tables = tables
        self._path = str(stable_path(tables, "things"))
        self._ended = ended
        self._open: DeltaTable | None = None
        self._last = 0

    def run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._read()
            except Exception as error:  # noqa: BLE001  # whatever a reader can see
                self.wrong.append(repr(error)[:300])
            self.reads += 1
            self._ended.wait(max(0.0, 0.04 - (time.monotonic() - began)))

    def _read(self) -> None:
        rows = self._rows().to_pylist()
        found = {row["n"] for row in rows}
        if len(rows) != KEYS or len(found) != 1 or min(found) < self._last:
            self.wrong.append(f"{len(rows)} rows of {found} after {self._last}")
        self._last = max(found, default=self._last)

    def _rows(self) -> pa.Table:
        if self.name == "query":
            return sql.run("SELECT id, n FROM things", self._tables)
        if self.name == "anew" or self._open is None:
            self._open = DeltaTable(self._path)
        else:
            self._open.update_incremental()
        if self.name == "slow":
            self._ended.wait(2)  # its files are replaced meanwhile, several times
        return self._open.to_pyarrow_table(columns=["id", "n"])


class Writer(threading.Thread):
    """Writes both versions of the view, each transaction in two commits; compacts and vacuums."""

    def __init__(self, tables: Path, published: Published, ended: threading.Event) -> None:
        super().__init__(name="writer")
        self.wrong: list[str] = []
        self.number = 0
        self._published_before: list[dict[str, int]] = []
        self._tables = tables
        self._published = published
        self._ended = ended

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.write()
        except Exception as error:  # noqa: BLE001  # told by the test
            self.wrong.append(repr(error)[:300])

    def write(self) -> None:
        self.number += 1
        versions: dict[str, int] = {}
        for place in ("things", "things.v2"):
            path = str(self._tables / place)
            if self.number == 1:
                write_deltalake(path, self._rows(0, KEYS), configuration=dict(CONFIGURATION))
            else:
                half = KEYS // 2
                for start in (0, half):
                    rows = self._rows(start, start + half)
                    given = f"id >= {start} AND id < {start + half}"
                    write_deltalake(path, rows, mode="overwrite", predicate=given)
            table = DeltaTable(path)
            versions[place] = table.version()
            if self.number % 5 == 0:
                table.optimize.compact()
                # what a query has just looked up stays for a while
                kept = [each[place] for each in (*self._published_before[-40:], versions)]
                table.vacuum(
                    0,
                    enforce_retention_duration=False,
                    dry_run=False,
                    keep_versions=kept,
                )
        self._published.publish(1, self.number, versions)
        self._published_before.append(versions)

    def _rows(self, start: int, end: int) -> pa.Table:
        ids = list(range(start, end))
        columns = {"id": ids, "n": [self.number] * len(ids), "odd": [False] * len(ids)}
        return pa.table(columns, FORM)


def test_readers_see_no_error_no_half_and_no_step_back_across_switches(tmp_path: Path) -> None:
    tables, ended = tmp_path / "home" / "tables", threading.Event()
    published, stable = Published(tables, "shop"), StableTable(tmp_path / "home/tables", "things")
    writer, showcase = Writer(tables, published, ended), StableTablesTask(tables, "shop")
    writer.write()
    stable.follow(published)
    readers = [Reader(tables, way, ended) for way in ("anew", "open", "slow", "query")]
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.programs.killed_show"])
    switches = (["things.v2", "things"] * SWITCHES)[:SWITCHES]
    switcher = processes.Process(
        target=killed_show.switch, args=(tables, "shop", "things", switches)
    )
    threads = [writer, showcase, *readers]
    for thread in threads:
        thread.start()
    switcher.start()
    switcher.join(150)
    wait_until(lambda: min(reader.reads for reader in readers), "reads", accept=lambda n: n > 1)
    ended.set()
    showcase.stop()
    for thread in threads:
        thread.join(30)

    assert switcher.exitcode == 0
    assert [[]] * 5 == [writer.wrong, *(reader.wrong for reader in readers)]
    assert {} == showcase.failing
    assert writer.number > SWITCHES
