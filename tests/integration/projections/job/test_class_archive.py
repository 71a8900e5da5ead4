"""Spark's driver takes its classes from the archive that `make setup` made."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headwater.runtime.java import java

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

START = """
import sys
from pathlib import Path
from projections.job.spark.session import JAVA_OPTIONS, class_archive, start_session
from projections.planning.job_config import JobConfig
home, log = map(Path, sys.argv[1:])
options = f'{JAVA_OPTIONS} {class_archive.option()} -Xlog:class+load:file={log}'
config = JobConfig.of_tables("s", home, (),
    driver_memory_mib=500, master="local[1]",
    conf={"spark.driver.extraJavaOptions": options})
spark = start_session(config)
print(spark.version)
"""


@pytest.mark.spark
def test_most_classes_come_from_the_archive(tmp_path: Path) -> None:
    log = tmp_path / "classes.log"

    subprocess.run(
        [sys.executable, "-c", START, str(tmp_path), str(log)], check=True, capture_output=True
    )

    lines = log.read_text().splitlines()
    archived = sum("shared objects file (top)" in line for line in lines)
    assert archived > len(lines) / 2, f"{archived} of {len(lines)}: run make setup"


def test_an_archive_of_another_java_and_one_that_was_cut_short_are_no_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from projections.job.spark import class_archive

    home = java.find_java().home
    mine = class_archive.existing(home)
    assert mine is not None, "run make setup"
    other = tmp_path / "java"
    (other / "bin").mkdir(parents=True)
    (other / "bin" / "java").write_bytes(b"")
    assert class_archive.existing(other) is None
    assert class_archive.existing(tmp_path / "nothing") is None

    monkeypatch.setattr(class_archive, "_FOLDER", tmp_path)
    assert "" == class_archive.option(home)
    (tmp_path / mine.name).write_bytes(b"as after a power cut")
    assert "" == class_archive.option(home)
    fits = f"{mine.stem.rpartition('-')[0]}-4.jsa"
    (tmp_path / fits).write_bytes(b"four")
    assert f'"-XX:SharedArchiveFile={tmp_path / fits}"' == class_archive.option(home)


def test_what_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from projections.job.spark import class_archive

    monkeypatch.setattr(class_archive, "_FOLDER", tmp_path / "share")
    old = tmp_path / "share" / "spark-old.jsa"
    old.parent.mkdir()
    old.write_bytes(b"of an older Spark")

    java_that_fails = tmp_path / "java" / "bin" / "java"
    java_that_fails.parent.mkdir(parents=True)
    java_that_fails.write_text("#!/bin/sh\nexit 1\n")
    java_that_fails.chmod(0o755)

    with pytest.raises(subprocess.CalledProcessError):
        class_archive.make(tmp_path / "java", [])

    assert [old] == list(old.parent.iterdir())
