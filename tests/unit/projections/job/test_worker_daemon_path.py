"""Spark's workers import the installed Spark, and not the archives that repeat it."""

from __future__ import annotations

from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark

from projections.job.spark.worker_daemon import without_archives

INSTALLED = Path(pyspark.__file__).parent
ARCHIVES = [
    *map(str, (INSTALLED / "python" / "lib").glob("*.zip")),
    *map(str, (INSTALLED / "jars").glob("spark-core_*.jar")),
]
PACKAGES = [str(INSTALLED.parent), str(Path(py4j.__file__).parents[1])]


def test_archives_of_the_installed_spark_are_left_out() -> None:
    assert len(ARCHIVES) == 3
    assert ["/mine.zip", *PACKAGES] == without_archives([*ARCHIVES, "/mine.zip", *PACKAGES])


def test_archives_are_kept_where_no_spark_is_installed() -> None:
    assert [*ARCHIVES, "/mine"] == without_archives([*ARCHIVES, "/mine"])


def test_archives_of_another_spark_are_kept() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", *PACKAGES]

    assert path == without_archives(path)


def test_archives_are_kept_where_the_gateway_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "pyspark").symlink_to(INSTALLED)

    assert [*ARCHIVES, str(tmp_path)] == without_archives([*ARCHIVES, str(tmp_path)])
