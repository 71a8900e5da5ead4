"""Into how many groups of pieces a large batch is divided."""

from __future__ import annotations

import pytest

from projections.job.backlog_tasks import PIECE_RECORDS, groups


@pytest.mark.parametrize(
    ("sizes", "tasks", "expected"),
    [
        ([10 * PIECE_RECORDS], 2, 2),
        ([10 * PIECE_RECORDS], 30, 10),
        ([3 * PIECE_RECORDS, 2 * PIECE_RECORDS + 1], 4, 4),
        ([3 * PIECE_RECORDS, *[100] * 21], 3, 24),
        ([8 * PIECE_RECORDS, *[100] * 400], 2, 64),
        ([1_000] * 400, 3, 3),
        ([PIECE_RECORDS - 1] * 2, 4, 2),
    ],
)
def test_a_batch_is_divided_so_that_each_task_has_its_share_of_the_full_pieces(
    sizes: list[int], tasks: int, expected: int
) -> None:
    of = {("things", number): size for number, size in enumerate(sizes)}
    assert expected == groups(of, tasks)
