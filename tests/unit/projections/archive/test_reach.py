"""A plan tells whether the archive goes back to the first change as a replay finds it out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import orjson
import pytest

from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.snapshot.reads import Read
from eventstore.serialization.registry import EventTypes
from projections.archive import completeness
from projections.archive.coverage import instead, reach
from projections.archive.event_compatibility import gaps
from projections.archive.scan import ArchiveScan
from projections.archive.survey import ArchiveSurvey, RecordFilter
from projections.changes.record import Record
from projections.definition.views import EventsRef, EventsView, HistoryColumns, MirrorView, Store
from projections.errors import ArchiveIncompleteError
from tests.fix_archive import archived
from tests.fix_log import TABLE, TOPIC, envelope

if TYPE_CHECKING:
    from pathlib import Path

    from projections.common.offsets import Offsets

READ_AT = 0x2000


def records(first: int, count: int = 8, *, read: bool = False, at: int = 0x1000) -> list[Record]:
    """Changes of four rows, or rows that a read has sent."""
    return [
        Record(
            orjson.dumps({"id": n % 4}),
            envelope(
                "r" if read else "u",
                READ_AT if read else at + 8 * n,
                {"id": n % 4, "note": f"n{n}", "big": "b"},
                order=0 if read else 1,
            ),
            "1",
            0,
            n,
        )
        for n in range(first, first + count)
    ]


def a_read(rows: int) -> Read:
    optional = {field.name: None for field in dataclasses.fields(Read)}
    said = {"id": 1, "source": "shop", "epoch": 1, "table": TABLE.table, "state": "done"}
    said["topic"] = TABLE.table.topic("shop")
    return Read(**{**optional, **said, "read_lsn": Lsn(READ_AT), "rows_read": rows})  # type: ignore[arg-type]


def replays(archive: Path, had: Offsets, whole: dict[str, Read]) -> bool:
    """Whether a replay would take the archive."""
    scan = ArchiveScan(archive, [TOPIC])
    survey = ArchiveSurvey(scan, [(TOPIC, 0)], RecordFilter())
    survey.run()
    try:
        completeness.check(scan, TOPIC, survey.topics[TOPIC], had, whole)
    except ArchiveIncompleteError:
        return False
    return True


@pytest.mark.parametrize(
    ("parts", "had", "rows", "lacking"),
    [
        ([records(0)], {}, None, False),
        ([records(5)], {}, None, True),
        ([records(5)], {(TOPIC, 0): 13}, None, True),
        ([records(0)], {(TOPIC, 0): 8, (TOPIC, 1): 3}, None, True),
        ([records(5, 3), records(8, 4, read=True)], {}, 4, False),
        ([records(5, 3), records(8, 3, read=True)], {}, 4, True),
        ([records(5, 3, at=0x3000), records(8, 4, read=True)], {}, 4, True),
        ([records(8, 4, read=True)], {}, 4, True),
    ],
    ids=[
        "from the first",
        "cut off",
        "cut off, and known",
        "a partition without anything",
        "a whole read",
        "a read that lacks a row",
        "begun after the read",
        "nothing before the read",
    ],
)
def test_what_a_plan_tells_is_what_a_replay_finds(
    tmp_path: Path, parts: list[list[Record]], had: Offsets, rows: int | None, *, lacking: bool
) -> None:
    for part in parts:
        archived(tmp_path / "archive", TOPIC, part)
    whole = {} if rows is None else {TOPIC: a_read(rows)}

    found = reach(tmp_path / "archive", [TOPIC], had, whole)

    assert sum(map(len, parts)) == found.records
    assert lacking == (found.lacking is not None)
    assert replays(tmp_path / "archive", had, whole) is not lacking


def test_the_reason_names_topic_and_offset(tmp_path: Path) -> None:
    assert "the source has no archive yet" == reach(tmp_path, [TOPIC], {}, {}).lacking

    archived(tmp_path / "archive", TOPIC, records(5))
    found = reach(tmp_path / "archive", [TOPIC, "shop.public.it's"], {}, {})
    assert (
        f"the archive lacks the first records of topic {TOPIC}: partition 0 begins at 5"
        == found.lacking
    )
    assert 1 << 56 == ChangePosition.of_read(1, Lsn(0)).version


def test_what_to_do_instead_says_what_a_read_does_not_bring() -> None:
    mirror = MirrorView("orders", "shop", TABLE.table, (), frozenset({Store.TABLE}))
    past = dataclasses.replace(mirror, history=HistoryColumns())

    assert "headwater view rebuild orders --from-source reads its table instead" == instead(mirror)
    assert "no state but the present ones" in instead(past)


def test_versions_of_an_event_that_nothing_brings_to_the_declared_one_are_named() -> None:
    types = EventTypes()
    placed = dataclasses.make_dataclass("Placed", [("total", int)], frozen=True)
    types.event("order.placed", version=3)(placed)
    types.upcaster("order.placed", 2)(lambda data: data)
    view = EventsView(
        "placed", "shop", EventsRef("shop", ("order.placed",), types), frozenset({Store.TABLE})
    )

    assert [("order.placed", 1)] == [(each.name, each.version) for each in gaps(view)]
