"""Checkpoints: what is read of damaged ones, and that none is taken for another query's."""

from __future__ import annotations

import shutil
import zlib
from typing import TYPE_CHECKING

import pytest

from projections.common import spark_checkpoint as checkpoint
from projections.errors import CheckpointForeignError
from projections.job.data_loss import find_recreated

if TYPE_CHECKING:
    from pathlib import Path

PLACE = ("t", 0)


def begun(place: Path, *ends: int) -> Path:
    """Makes a checkpoint as Spark does, with a finished batch for each end."""
    write(place / "metadata", '{"id":"2b9c"}')
    write(place / "sources" / "0" / "0", '\0v1\n{"t":{"0":0}}')
    for number, end in enumerate(ends):
        write(place / "offsets" / str(number), f'v1\n{{"conf":{{}}}}\n{{"t":{{"0":{end}}}}}')
        write(place / "commits" / str(number), 'v1\n{"nextBatchWatermarkMs":0}')
    return place


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    parts = [text.encode()[start : start + 16] for start in range(0, len(text.encode()), 16)]
    sums = b"".join(zlib.crc32(part).to_bytes(4) for part in parts)
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0" + (16).to_bytes(4) + sums)


def test_a_checkpoint_that_is_whole_is_not_damaged(tmp_path: Path) -> None:
    place = begun(tmp_path / "cache", 3, 7, 9)
    assert checkpoint.damaged(place) is None
    assert {PLACE: 9} == checkpoint.committed(place)

    (place / "commits" / "2").unlink()  # killed in its third batch
    assert checkpoint.damaged(place) is None
    assert {PLACE: 7} == checkpoint.committed(place)
    assert {PLACE: 9} == checkpoint.begun(place)
    assert checkpoint.damaged(tmp_path / "search") is None  # none has begun
    assert {} == checkpoint.begun(tmp_path / "search")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("offsets/2", 7),
        ("offsets/1", 9),
        ("commits/2", 9),
        ("sources/0/0", 9),
        ("metadata", 9),
    ],
)
@pytest.mark.parametrize(
    "content", [b"", b"v1\n", b"v1\n{\n", b"\xff\0garbage", b'v1\n{}\n{"t":{"0":8}}', None]
)
def test_a_damaged_file_is_named_and_the_last_batch_that_can_be_read_counts(
    tmp_path: Path, name: str, end: int, content: bytes | None
) -> None:
    place = begun(tmp_path / "cache", 3, 7, 9)
    if content is None and name == "commits/2":
        return  # as if the batch had not been finished
    if content is None:
        (place / name).unlink()
    else:
        (place / name).write_bytes(content)

    assert place / name == checkpoint.damaged(place)
    assert {PLACE: end} == checkpoint.committed(place)
    bounds = {PLACE: (0, 20)}
    starts = checkpoint.starts({PLACE: end}, frozenset({"t"}), bounds, restart=True)
    assert {"t": {"0": end - 1}} == starts


def test_a_checkpoint_is_known_for_its_own_and_no_other(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "shop", tmp_path / "other" / "shop"
    table = begun(folder / "table", 7)
    for each in (folder, elsewhere, tmp_path / "books"):
        checkpoint.adopt(each)  # what was there before counts as its own
        checkpoint.adopt(each)
    assert {} == checkpoint.check(table)
    for place in (table, folder / "cache", elsewhere / "cache", tmp_path / "books" / "cache"):
        checkpoint.claim(place, {"t": "id"})
        begun(place, 9)
        assert {"t": "id"} == checkpoint.check(place)

    for other, why in (
        (table, "query table of source shop"),
        (tmp_path / "books" / "cache", "query cache of source books"),
        (elsewhere / "cache", "another home folder"),
    ):
        put(other, folder / "cache")
        with pytest.raises(CheckpointForeignError, match="belongs to another query") as caught:
            checkpoint.check(folder / "cache")
        assert why in str(caught.value.detail)
    (folder / "cache" / "headwater.json").unlink()
    with pytest.raises(CheckpointForeignError, match="query cache"):
        checkpoint.check(folder / "cache")
    shutil.rmtree(folder / "cache")
    assert {} == checkpoint.check(folder / "cache")


def put(checkpoint: Path, place: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(checkpoint, place)


def test_a_topic_that_was_made_anew_is_told_by_its_id() -> None:
    known = {"a": "1", "b": "2", "gone": "3"}

    assert find_recreated("cache", {"a", "b", "gone", "new"}, known, {"a": "1", "b": "2"}) is None
    assert (
        find_recreated("cache", {"a"}, known, {"a": "1", "b": "5"}) is None
    )  # it stands not in it
    error = find_recreated("cache", {"a", "b"}, known, {"a": "1", "b": "5"})
    assert error is not None
    assert "topic b was recreated, 2 before, 5 now" == error.detail
