"""What a reader of the archive holds: until it has ended, however it ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from projections.common.table_pins import pinned, pinned_versions

if TYPE_CHECKING:
    from pathlib import Path

READS = """
import sys
from pathlib import Path
from projections.common.table_pins import pinned
with pinned(Path(sys.argv[1]), 7):
    print("reads", flush=True)
    sys.stdin.read()
"""


def test_a_reader_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    command = [sys.executable, "-c", READS, str(archive)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reads\n"
        with pinned(archive, 5):
            assert [5, 7] == pinned_versions(archive)
            reader.kill()
            reader.wait()
            assert [5] == pinned_versions(archive)

    assert [] == pinned_versions(archive)
    assert [] == [*(tmp_path / f".{archive.name}.pins").glob("*")]
