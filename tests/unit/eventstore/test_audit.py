"""The chain over the log, without a database."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import AuditError
from eventstore.upkeep.audit import (
    SEALS_BEGIN,
    AuditReport,
    Finding,
    Seal,
    SealedHead,
    Tampering,
    chained,
    check_block,
)

ROWS = [(3, b"a"), (4, b"b"), (7, b"c"), (9, b"d")]


def sealed(rows: list[tuple[int, bytes]], *, after: int = 2, through: int = 9) -> Seal:
    hashes = b"".join(chained(SEALS_BEGIN, (content for _, content in rows)))
    seal = Seal(1, after, through, len(rows), [place for place, _ in rows], hashes, 17, b"")
    return seal._replace(digest=seal.digest_after(SEALS_BEGIN))


def test_a_hash_covers_the_hash_before_it_and_the_event() -> None:
    first, second = chained(b"before", [b"a", b"b"])

    assert hashlib.sha256(b"beforea").digest() == first
    assert hashlib.sha256(first + b"b").digest() == second


def test_a_block_that_is_as_it_was_sealed_is_clean() -> None:
    check = check_block(sealed(ROWS), SEALS_BEGIN, ROWS)

    assert (4, 0, None) == check


@pytest.mark.parametrize(
    ("rows", "kind", "position"),
    [
        pytest.param([(3, b"a"), (4, b"X"), *ROWS[2:]], Tampering.CHANGED, 4, id="edited"),
        pytest.param([*ROWS[:3], (9, b"X")], Tampering.CHANGED, 9, id="last one edited"),
        pytest.param([ROWS[0], *ROWS[2:]], Tampering.REMOVED, 4, id="removed"),
        pytest.param(ROWS[:3], Tampering.REMOVED, 9, id="last one removed"),
        pytest.param([], Tampering.REMOVED, 3, id="all removed"),
        pytest.param([*ROWS[:2], (5, b"X"), *ROWS[2:]], Tampering.INSERTED, 5, id="into a gap"),
        pytest.param([*ROWS, (9, b"d")], Tampering.INSERTED, 9, id="twice"),
        pytest.param([*ROWS[:2], (4, b"b"), ROWS[2]], Tampering.INSERTED, 4, id="twice within"),
        pytest.param([(3, b"b"), (4, b"a"), *ROWS[2:]], Tampering.CHANGED, 3, id="swapped"),
        pytest.param([ROWS[0], (5, b"b"), *ROWS[2:]], Tampering.REMOVED, 4, id="moved up"),
        pytest.param([*ROWS[:2], (6, b"c"), ROWS[3]], Tampering.INSERTED, 6, id="moved down"),
    ],
)
def test_the_first_difference_is_named(
    rows: list[tuple[int, bytes]], kind: Tampering, position: int
) -> None:
    finding = check_block(sealed(ROWS), SEALS_BEGIN, rows).finding

    assert finding is not None
    assert (kind, position) == (finding.kind, finding.position)


def test_an_event_whose_predecessor_was_another_is_changed() -> None:
    finding = check_block(sealed(ROWS), b"another".ljust(32), ROWS).finding

    assert finding is not None
    assert (Tampering.CHANGED, 3) == (finding.kind, finding.position)


def test_dropped_events_are_passed_by_and_the_chain_goes_on_over_them() -> None:
    check = check_block(sealed(ROWS), SEALS_BEGIN, [ROWS[0], ROWS[3]], frozenset({4, 7}))

    assert (2, 2, None) == check


def test_behind_dropped_events_a_difference_is_still_found() -> None:
    finding = check_block(
        sealed(ROWS), SEALS_BEGIN, [ROWS[0], (9, b"X")], frozenset({4, 7})
    ).finding

    assert finding is not None
    assert (Tampering.CHANGED, 9) == (finding.kind, finding.position)


rows_of_a_block = st.lists(
    st.tuples(st.integers(3, 60), st.binary(max_size=3)), min_size=1, unique_by=lambda row: row[0]
).map(sorted)


@given(before=rows_of_a_block, after=rows_of_a_block)
def test_any_two_different_blocks_differ_first_where_they_differ(
    before: list[tuple[int, bytes]], after: list[tuple[int, bytes]]
) -> None:
    finding = check_block(sealed(before, through=60), SEALS_BEGIN, after).finding

    different = sorted(set(before) ^ set(after))
    assert (different[0][0] if different else None) == (finding.position if finding else None)


@pytest.mark.parametrize("field", ["block", "after", "through", "event_total", "sealed_us"])
def test_a_seals_digest_covers_its_numbers(field: str) -> None:
    seal = sealed(ROWS)

    changed = seal._replace(**{field: getattr(seal, field) + 1})

    assert seal.digest != changed.digest_after(SEALS_BEGIN)


def test_a_seals_digest_covers_its_positions_hashes_and_the_seal_before() -> None:
    seal = sealed(ROWS)

    assert seal.digest == seal.digest_after(SEALS_BEGIN)
    assert seal.digest != seal.digest_after(b"another".ljust(32))
    assert seal.digest != seal._replace(positions=[3, 4, 8, 9]).digest_after(SEALS_BEGIN)
    assert seal.digest != seal._replace(hashes=b"x" * 128).digest_after(SEALS_BEGIN)


def test_a_head_reads_back_from_its_line() -> None:
    head = SealedHead(2, 31, 17, b"d" * 32, 5, b"e" * 32)

    assert head == SealedHead.parse(f" {head}\n")
    assert str(head).startswith("hwa1.2.31.17.")
    assert "\n" not in str(head)


@pytest.mark.parametrize("text", ["", "hwa1.1.2", "hw1.1.2", f"{SealedHead()}0", "x" * 500])
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(AuditError, match="not a sealed head"):
        SealedHead.parse(text)


def test_a_clean_report_passes_and_another_names_the_first_position() -> None:
    AuditReport(SealedHead(), 4, 0, 0, ()).check()
    findings = (
        Finding(Tampering.REMOVED, 4, "the event is not there"),
        Finding(Tampering.CUT, 9, "1 seals are left"),
    )

    with pytest.raises(AuditError, match="removed at global position 4") as caught:
        AuditReport(SealedHead(), 4, 0, 0, findings).check()

    assert "cut at 9" in str(caught.value.detail)
