"""A source table is divided into pieces: each block is in one of them, and none is much larger."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from projections.stores.delta.source_copy import BlockRange, divided

RELATIONS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=8)


@given(RELATIONS, st.integers(1, 30))
def test_every_block_is_in_one_piece(sizes: list[tuple[int, bool]], step: int) -> None:
    relations = [
        ("public", f"t{number}", pages if plain else 0, plain)
        for number, (pages, plain) in enumerate(sizes)
    ]

    pieces = divided(relations, step)

    assert all(pieces)
    blocks = {name: pages for _, name, pages, _ in relations}
    for piece in pieces:
        ranges = ((blocks[r.name] if r.end is None else r.end) - (r.first or 0) for r in piece)
        assert sum(ranges) <= step
    for _, name, _, plain in relations:
        own = [(piece, r) for piece in pieces for r in piece if r.name == name]
        if not plain:  # a foreign table has no blocks
            assert [((BlockRange("public", name),), BlockRange("public", name))] == own
            continue
        begins, ends = [r.first for _, r in own], [r.end for _, r in own]
        assert begins == [0, *ends[:-1]]
        assert None is ends[-1]  # rows may just be added behind the last block
