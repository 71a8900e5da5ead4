"""The parts of reading tables that need no server."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.change_event import ChangeEvent
from cdc.envelope import Operation
from cdc.lsn import Lsn
from cdc.snapshot import read_point
from cdc.snapshot.chunk import BYTES_AIM, ROWS_MAX, Chunk, rows_of_next
from cdc.snapshot.progress import KeyRange, SnapshotProgress
from cdc.snapshot.quiet_moment import ended_between
from cdc.snapshot.record import ReadEnvelope
from cdc.table import TableName

_keys = st.one_of(st.none(), st.lists(st.text(), min_size=1, max_size=3).map(tuple))
_ranges = st.builds(KeyRange, _keys, _keys, _keys, st.booleans())


@given(st.text(), st.lists(st.tuples(st.text(), st.text())).map(tuple), st.lists(_ranges))
def test_progress_comes_back_as_it_was_kept(
    identity: str, shape: tuple[tuple[str, str], ...], ranges: list[KeyRange]
) -> None:
    progress = SnapshotProgress(identity, shape, tuple(ranges))

    kept = orjson.loads(orjson.dumps(progress.to_json()))

    assert progress == SnapshotProgress.from_json(kept)


@pytest.mark.parametrize(
    ("earlier", "later", "ended"),
    [
        ("10:10:", "10:10:", False),
        ("10:10:", "10:12:10,11", False),  # two have begun
        ("10:10:", "11:12:11", True),  # one of them is over already
        ("8:10:8,9", "8:10:8,9", False),
        ("8:10:8,9", "9:10:9", True),
        ("8:10:8", "8:11:8,10", False),  # 9 had ended before
    ],
)
def test_a_transaction_that_ended_between_two_looks_shows(
    earlier: str, later: str, ended: bool
) -> None:
    assert ended == ended_between(earlier, later)


def test_the_position_of_a_read_is_that_of_no_record() -> None:
    position = read_point.before("0/1690F9C8")

    assert Lsn.parse("0/1690F9C8").value - 1 == position.value
    assert position.value % 8, "records begin at multiples of eight"


def test_a_row_and_an_absence_are_events_at_the_position_of_the_read() -> None:
    envelope = ReadEnvelope("shop", TableName("we%rd", "t%s"), Lsn(4711))
    key = b'{"id":1}'

    row = ChangeEvent.parse(key, envelope.of_row(b'{"id":1,"n":null}'), 3)
    numbered = ChangeEvent.parse(None, envelope.of_row(b'{"n":2}', 7), 3)
    absence = ChangeEvent.parse(key, envelope.of_absence(key), 3)

    assert (Operation.READ, {"id": 1, "n": None}) == (row.operation, row.after)
    assert (Operation.DELETE, {"id": 1}, None) == (absence.operation, absence.key, absence.after)
    assert row.position.version == absence.position.version == numbered.position.version
    assert (0, 7) == (row.position.order, numbered.position.order)
    assert TableName("we%rd", "t%s") == row.table


@pytest.mark.parametrize(
    ("rows", "size", "wanted"),
    [(2_000, 2_000 * 100, ROWS_MAX), (2_000, 2_000 * 10**6, BYTES_AIM // 10**6), (1, 10**9, 1)],
)
def test_a_chunk_of_wide_rows_has_fewer(rows: int, size: int, wanted: int) -> None:
    assert wanted == rows_of_next(Chunk(rows, size, KeyRange()))
