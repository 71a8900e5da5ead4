"""A source table is divided into pieces: each block is in one of them, and none is much larger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.stores.delta.source_copy import BlockRange, TableFile, divided

RELATIONS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=8)


@given(RELATIONS, st.integers(1, 30))
def test_every_block_is_in_one_piece(sizes: list[tuple[int, bool]], step: int) -> None:
    relations = [
        TableFile("public", f"t{number}", plain, pages if plain else 0, 8192, number, 0, plain)
        for number, (pages, plain) in enumerate(sizes)
    ]

    pieces = divided(relations, step)

    assert all(pieces)
    blocks = {each.name: each.blocks for each in relations}
    for piece in pieces:
        ranges = ((blocks[r.name] if r.end is None else r.end) - (r.first or 0) for r in piece)
        assert sum(ranges) <= step
    for _, name, plain, *_ in relations:
        own = [(piece, r) for piece in pieces for r in piece if r.name == name]
        if not plain:  # a foreign table has no blocks
            assert [((BlockRange("public", name),), BlockRange("public", name))] == own
            continue
        begins, ends = [r.first for _, r in own], [r.end for _, r in own]
        assert begins == [0, *ends[:-1]]
        assert None is ends[-1]  # rows may just be added behind the last block
