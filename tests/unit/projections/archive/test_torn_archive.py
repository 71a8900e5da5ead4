"""A file of the archive that is torn or has damaged pages ends a replay with a named error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from projections.archive.replay import replay
from projections.archive.task import ReplayTarget
from projections.errors import ArchiveMissingError
from tests.fix_archive import archived
from tests.fix_log import PLAN, TOPIC, orders
from tests.support.memory_sink import MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def damage(data: bytes) -> bytes:
    """The pages are overwritten; what the file says of itself at its end stays."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    return b"PAR1" + b"\xff" * (len(data) - 4 - footer) + data[-footer:]


@pytest.mark.parametrize("spoil", [cut, damage, lambda _: b""])
def test_a_torn_file_is_named_and_no_row_is_written(
    tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    for start in (0, 10):
        archived(tmp_path, TOPIC, orders(20)[start : start + 10])
    torn = max(tmp_path.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    torn.write_bytes(spoil(torn.read_bytes()))
    sink = MemorySink()

    with pytest.raises(ArchiveMissingError) as caught:
        replay(tmp_path, [ReplayTarget((PLAN,), lambda: sink)])

    assert caught.value.detail is not None
    assert torn.name in caught.value.detail
    assert [] == list(sink.documents(PLAN))
