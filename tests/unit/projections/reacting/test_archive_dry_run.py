"""A dry run over the archive plans what one over the records themselves would."""

from __future__ import annotations

from collections import Counter
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc import ChangePosition, Operation
from eventstore.reactor import Invoke, Reactor
from projections.errors import ArchiveMissingError
from projections.reacting.change_reactor import change_key
from projections.reacting.dry_run import dry_run_archive
from tests.fix_archive import SENT_AT, archived, compacted
from tests.fix_log import TABLE, TOPIC, numbered, orders, sources
from tests.fix_seeds import examples

if TYPE_CHECKING:
    from pathlib import Path

    from cdc import Change
    from projections.changes.record import Record
    from projections.reacting.dry_run import PlannedChangeEffect


def react(change: Change) -> list[Invoke]:
    """Two effects of each change of a row; a row without a note cannot be told of."""
    if change.operation is Operation.DELETE:
        return []
    if change.after is not None and change.after["id"] == 4:
        raise LookupError
    return [Invoke(print), Invoke(print)]


REACTOR = Reactor(name="letters", react=react)


def planned(archive: Path, **options: Any) -> list[PlannedChangeEffect]:
    known = {"source": "shop", "tables": ["public.things"], "schemas": {TABLE.table: TABLE}}
    return list(dry_run_archive(archive, "nowhere:1", REACTOR, **known | options))


def committed(record: Record) -> Record:
    """The record with its transaction, which tells a change from a row that was read."""
    return record._replace(value=record.value.replace(b'"lsn":', b'"txId":7,"lsn":'))


@settings(max_examples=examples(20), deadline=None)
@given(source=sources(), cut=st.integers(0, 20), whole=st.booleans(), reads=st.booleans())
def test_each_change_has_its_effects_once_and_rows_that_were_read_have_none(
    tmp_path_factory: pytest.TempPathFactory, source: Any, cut: int, whole: bool, reads: bool
) -> None:
    archive = tmp_path_factory.mktemp("archive") / "shop"
    streamed = [committed(record) for record in source.topic]
    records = numbered([*streamed, *(source.read(0, 1) if reads else [])])
    archived(archive, TOPIC, records[:cut])
    archived(archive, TOPIC, records[cut:])
    archived(archive, "shop.public.others", records)
    if whole:
        compacted(archive)

    found = planned(archive)

    effects = Counter((each.offset, each.error_type is None) for each in found)
    wanted: Counter[tuple[int, bool]] = Counter()
    for offset, record in enumerate(streamed):
        if b'"op":"d"' not in record.value:
            failed = b'"after":{"id":4' in record.value
            wanted[offset, not failed] = 1 if failed else 2
    assert wanted == effects
    keys = [each.key for each in found if each.key is not None]
    assert len(keys) == len(set(keys))
    places = {(each.table, each.topic, each.partition) for each in found}
    assert places <= {("public.things", TOPIC, 0)}


def test_the_keys_are_those_of_a_delivery_and_a_day_leaves_out_what_came_before(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "shop"
    records = [committed(record) for record in orders(3)]
    archived(archive, TOPIC, records[:2])
    archived(archive, TOPIC, records[2:], SENT_AT + timedelta(days=1))

    found = planned(archive)
    later = planned(archive, since=date.max)

    assert [0, 0, 1, 1, 2, 2] == [each.offset for each in found]
    assert [] == later
    seen: list[str] = []

    def delivered(change: Change) -> list[Invoke]:
        assert isinstance(change.position, ChangePosition)
        seen.append(change_key("letters", "shop", change))
        return []

    known = {"source": "shop", "tables": ["public.things"], "schemas": {TABLE.table: TABLE}}
    quiet = Reactor(name="letters", react=delivered)
    assert [] == list(dry_run_archive(archive, "nowhere:1", quiet, **known))
    assert [f"{key}:{n}" for key in seen for n in (1, 2)] == [each.key for each in found]


def test_without_an_archive_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArchiveMissingError):
        planned(tmp_path / "none")
