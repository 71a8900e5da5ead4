"""How much a task of a rebuild has at a time does not depend on how changes lie among keys."""

from __future__ import annotations

import pickle
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pyarrow as pa
import pytest

from projections.archive.fold_entries import read_folded
from projections.archive.rebuilding import task_ranges
from projections.archive.rebuilding.fold_tasks import FoldBlocks, FoldKeys
from projections.archive.rebuilding.row_numbers import RowNumbers
from projections.archive.rebuilding.task_ranges import block_groups, row_cuts
from projections.archive.scan import ArchiveScan
from projections.archive.survey import SAMPLED_EVERY, ArchiveSurvey, RecordFilter
from projections.changes.record import Record
from projections.common.task_files import TaskFiles
from tests.fix_archive import archived
from tests.fix_log import TOPIC, envelope

if TYPE_CHECKING:
    from pathlib import Path

RECORDS, PER_FILE, TASK_ROWS, BUCKETS = 2_400, 100, 250, 3
HOT = 2_000
"""Changes of one key; all others are of one key each."""


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_ranges, "TASK_ROWS", TASK_ROWS)


@pytest.fixture(params=["one partition", "one of three partitions"])
def scan(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveScan:
    """An archive with a key that has five changes of six, in a partition that has nearly all."""
    random = Random(5)  # noqa: S311  # no secret
    keys = [0] * HOT + list(range(1, RECORDS - HOT + 1))
    random.shuffle(keys)
    ends: Counter[int] = Counter()
    records = []
    for number, key in enumerate(keys):
        partition = key % 3 if request.param != "one partition" else 0
        value = envelope("u", 0x1000 + 8 * number, {"id": key, "note": "n", "big": "b"})
        key_text = orjson.dumps({"id": key})
        records.append(Record(key_text, value, "1", partition, ends[partition]))
        ends[partition] += 1
    for start in range(0, RECORDS, PER_FILE):
        archived(tmp_path / "shop", TOPIC, records[start : start + PER_FILE])
    return ArchiveScan(tmp_path / "shop", [TOPIC])


def numbers(count: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"id": list(range(count))})]


def names(batches: list[pa.RecordBatch]) -> list[str]:
    return [batch.column(0)[0].as_py() for batch in batches]


def test_the_records_of_a_task_are_bounded(scan: ArchiveScan) -> None:
    groups = block_groups(scan)
    of_groups = [sum(block.rows for block in scan.blocks[a:b]) for a, b in groups]
    hot = np.arange(RECORDS - 900, RECORDS)  # newest records that all lie at the end
    for rows in (np.arange(RECORDS), np.arange(0, RECORDS, 7), hot):
        cuts = row_cuts(scan, rows)
        assert (0, len(rows)) == (cuts[0], cuts[-1])
        assert max(np.diff(cuts)) <= TASK_ROWS + PER_FILE

    assert sum(of_groups) == RECORDS
    assert max(of_groups) <= TASK_ROWS + PER_FILE


def test_a_key_comes_once_from_each_task_however_often_it_has_changed(
    scan: ArchiveScan, tmp_path: Path
) -> None:
    groups = block_groups(scan)
    folded, files = TaskFiles.made(tmp_path / "files"), TaskFiles.made(tmp_path / "files")
    blocks = FoldBlocks(
        scan=scan,
        taken=RecordFilter(),
        groups=groups,
        buckets=BUCKETS,
        files=folded,
        topic=TOPIC,
        left_to_read=0,
    )
    made = names(list(blocks.run(numbers(len(groups)))))
    keys = FoldKeys(files, folded, tuple(made))
    found = names(list(keys.run(numbers(BUCKETS))))

    entries = Counter[int]()
    for name in made:
        with pa.ipc.open_file(str(folded.folder / name)) as file:
            for bucket in range(BUCKETS):
                entries[bucket] += file.get_batch(bucket).num_rows
    distinct = RECORDS - HOT + 1
    assert sum(entries.values()) <= distinct + len(groups)
    assert max(entries.values()) <= 1.3 * distinct / BUCKETS + len(groups)
    whole = read_folded(files.folder / name for name in found)
    assert len(whole.numbers) == len(whole.versions) == distinct
    assert (np.diff(whole.numbers) > 0).all()


def test_a_survey_holds_of_each_partition_only_a_sample(scan: ArchiveScan) -> None:
    survey = ArchiveSurvey(scan, [], RecordFilter())
    survey.run()

    topic = survey.topics[TOPIC]
    samples = [sample for parts in topic.samples.values() for sample in parts]
    assert RECORDS == topic.rows
    # a view of an array keeps the array that it shows a part of
    assert all(sample.base is None for sample in samples)
    assert sum(map(len, samples)) <= 3 * len(scan.blocks) * (1 + PER_FILE // SAMPLED_EVERY)


@pytest.mark.parametrize("rows", [0, 1, RECORDS])
def test_each_task_reads_its_own_row_numbers(scan: ArchiveScan, tmp_path: Path, rows: int) -> None:
    given = np.arange(rows)
    made = RowNumbers.stored(TaskFiles.made(tmp_path / "files"), given, row_cuts(scan, given))

    read = [made.of(task) for task in range(made.tasks)]
    assert given.tolist() == np.concatenate([np.empty(0, np.int64), *read]).tolist()
    assert all(len(each) <= TASK_ROWS + PER_FILE for each in read)
    assert len(pickle.dumps(made)) < 1_000
