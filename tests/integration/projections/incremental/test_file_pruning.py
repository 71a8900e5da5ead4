"""Joins are kept from files near what changed, and are what their query gives of all of them."""

from __future__ import annotations

import datetime as dt
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import PySparkException

from projections.definition.views import DerivedView
from projections.incremental.spark import maintainer
from projections.incremental.spark.maintainer import DerivedMaintainer
from projections.incremental.spark.pruned_inputs import PrunedInputs
from projections.incremental.spark.table_reader import TableVersions
from projections.publishing.published_content import PublishedVersion, TableVersion
from projections.stores.delta.table_format import FEED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(600)]

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
DAYS = 12
EACH_DAY = 6
BREAKS = 3
"""The boundary at which keys cannot be found, so that all is computed."""
MOMENT = pa.timestamp("us", "UTC")
SEARCHES = pa.schema([("id", pa.string()), ("at", MOMENT), ("_version", pa.int64())])
CLICKS = pa.schema(
    [("id", pa.string()), ("search", pa.string()), ("at", MOMENT), ("_version", pa.int64())]
)
SCHEMAS = {"searches": SEARCHES, "clicks": CLICKS}
PAIRS = """
    SELECT s.id, s.at, c.id AS click, c.at AS clicked_at FROM searches s
      LEFT JOIN clicks c ON c.search = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 1 HOUR
"""
COUNTED = f"SELECT id, count(click) AS n, max(clicked_at) AS last FROM ({PAIRS}) GROUP BY id"  # noqa: S608
VIEWS = (
    DerivedView("pairs", ("id", "click"), frozenset(), ("searches", "clicks"), PAIRS),
    DerivedView("counted", ("id",), frozenset(), ("searches", "clicks"), COUNTED),
)


class Web:
    """Searches and clicks in a file for each day, whose identifiers say nothing of their times."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder, self.random = folder, random
        self.ids: dict[str, list[str]] = {"searches": [], "clicks": []}
        for name, schema in SCHEMAS.items():
            DeltaTable.create(str(folder / name), schema, configuration=dict(FEED))
        for day in range(DAYS):
            self.add(NOON + dt.timedelta(days=day), EACH_DAY)

    @property
    def versions(self) -> dict[str, int]:
        return {name: DeltaTable(str(self.folder / name)).version() for name in SCHEMAS}

    def add(self, since: dt.datetime, count: int) -> None:
        for name, ids in self.ids.items():
            new = [f"{self.random.getrandbits(64):x}" for _ in range(count)]
            ids.extend(new)
            self._append(name, [self.row(name, each, since) for each in new])

    def row(self, name: str, number: str, since: dt.datetime) -> dict[str, Any]:
        at = since + dt.timedelta(minutes=self.random.randrange(0, 120, 15))
        known = {"id": number, "at": self.random.choice([at] * 9 + [None]), "_version": 1}
        if name == "searches":
            return known
        return known | {"search": self.random.choice(self.ids["searches"][-2 * EACH_DAY :])}

    def change(self, name: str) -> None:
        """Changes some rows, one of which is of another day then, and deletes one."""
        day = NOON + dt.timedelta(days=self.random.randrange(DAYS))
        some = self.random.sample(self.ids[name], 3)
        given = pa.Table.from_pylist([self.row(name, each, day) for each in some], SCHEMAS[name])
        gone = given.append_column("gone", pa.array([True, False, False]))
        self.ids[name].remove(some[0])
        merge = DeltaTable(str(self.folder / name)).merge(gone, "t.id = s.id", "s", "t")
        merge.when_matched_delete("s.gone").when_matched_update_all(
            "NOT s.gone", except_cols=["gone"]
        ).execute()

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        given = pa.Table.from_pylist(rows, SCHEMAS[name])
        write_deltalake(str(self.folder / name), given, mode="append")


def broken(*_: object) -> None:
    raise PySparkException("no such version")


def rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.mark.parametrize("files_max", [96, 1], ids=["files", "delta"])
def test_files_that_are_not_near_what_changed_are_passed_over_and_no_row_is_missed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_max: int
) -> None:
    random = Random(f"web {files_max}")  # noqa: S311  # chance that is repeated
    web, versions = Web(tmp_path, random), TableVersions(spark, tmp_path, files_max=files_max)
    seen: list[tuple[int, int]] = []
    narrowed = PrunedInputs.of

    def counted(self: PrunedInputs, inputs: dict[str, DataFrame]) -> dict[str, DataFrame]:
        found = narrowed(self, inputs)
        seen.extend(
            (len(found[name].inputFiles()), len(frame.inputFiles()))
            for name, frame in inputs.items()
        )
        return found

    monkeypatch.setattr(PrunedInputs, "of", counted)
    own: dict[str, TableVersion | None] = dict.fromkeys(view.name for view in VIEWS)
    maintainers = [DerivedMaintainer(tmp_path, view, versions) for view in VIEWS]
    for boundary in range(1, 6):
        known = {name: TableVersion(at, 1, boundary) for name, at in web.versions.items()}
        for derived in maintainers:
            derived.identities = dict.fromkeys(SCHEMAS, ("id",))
            name = derived.view.name
            version = PublishedVersion(boundary, 1, boundary, 0, known, complete=False)
            with monkeypatch.context() as patched:
                if boundary == BREAKS:  # as it does where the feed reaches not so far
                    patched.setattr(maintainer, "gathered", broken)
                own[name] = derived.maintain(version, known, own[name])
            whole = derived.result({each: at.version for each, at in known.items()})
            kept = spark.read.format("delta").load(str(tmp_path / name)).drop("_version")
            assert rows(whole) == rows(kept.select(whole.columns))
        web.add(NOON + dt.timedelta(days=DAYS + boundary), 2)
        for name in random.sample(list(SCHEMAS), random.choice([0, 1, 2])):
            web.change(name)

    # at each boundary but the first, of both versions
    assert len(seen) == 2 * 2 * len(VIEWS) * 4
    if files_max == 1:
        near, whole_files = map(sum, zip(*seen, strict=True))
        assert near < whole_files / 2
    said = {each.view.name: each.explanation for each in maintainers}
    assert said["pairs"] is not None
    assert {"searches.at", "clicks.at", "clicks.search"} <= set(said["pairs"].near)
    maintainers[0].identities = {"searches": ("id", "at")}  # which no key of the view has
    assert maintainers[0].explanation is not None
    assert () == maintainers[0].explanation.near
