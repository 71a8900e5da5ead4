"""A spool gives back what each part was given, in its order, and has no file by a name."""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from projections.common.spill_file import SpillFile

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("key", pa.string()), ("rows", pa.list_(pa.int64()))])
_rows = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.text(max_size=5),
            "rows": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        }
    ),
    max_size=5,
)
_parts = st.integers(0, 3)


@given(st.lists(st.tuples(_parts, _rows | _parts), max_size=12))
def test_each_part_has_what_it_was_given_whenever_it_is_read(
    steps: list[tuple[int, list[dict[str, object]] | int]],
) -> None:
    given_rows: dict[int, list[dict[str, object]]] = defaultdict(list)
    with closing(SpillFile(SCHEMA)) as spool:
        for part, rows in steps:
            if isinstance(rows, int):
                assert given_rows[part] == spool.read(part).to_pylist()
                continue
            # a part of a batch is written as that part alone
            batch = pa.RecordBatch.from_pylist([*rows, *rows], schema=SCHEMA)
            spool.add(part, batch.slice(len(rows)))
            given_rows[part] += rows
        for part in range(4):
            assert given_rows[part] == spool.read(part).to_pylist()


def test_whoever_is_killed_leaves_nothing(tmp_path: Path) -> None:
    with closing(SpillFile(SCHEMA, tmp_path)) as spool:
        batch = pa.RecordBatch.from_pylist([{"key": "a person's"}] * 100_000, schema=SCHEMA)
        spool.add("one", batch)

        assert [] == list(tmp_path.iterdir())
        assert 100_000 == spool.read("one").num_rows
