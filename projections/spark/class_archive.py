"""The classes of Spark's driver as the JVM has them in memory, read at its start instead of jars.

A driver loads some twenty thousand classes; to find, parse and verify them is a third of the
processor time until the first batches are through. Java writes them into one file when a JVM ends
(`-XX:ArchiveClassesAtExit`, JEP 350), which the next one maps.

An archive is of use with the very Java and the very jars that it was made with, so its name says
both, and Java compares them again: one that does not fit is passed over. It lies in the Python
environment whose jars it was made from and goes with it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyspark

if TYPE_CHECKING:
    from collections.abc import Sequence

_FOLDER: Final = Path(sys.prefix) / "share" / "headwater"
_TRAINING_S: Final = 600


def place(java_home: Path | None = None) -> Path | None:
    """Where the archive for a Java is, whether it was made or not.

    Args:
        java_home: Home of the Java that runs Spark; None for the one on the search path.

    Returns:
        Its path; None where there is no such Java.
    """
    java = (java_home / "bin" / "java") if java_home else Path(shutil.which("java") or "")
    if not java.is_file():
        return None
    java = java.resolve()
    digest = hashlib.sha256(str(java).encode())
    release = java.parents[1] / "release"
    if release.is_file():
        digest.update(release.read_bytes())
    # whole seconds, as Java compares: a file that was packed and unpacked has no more
    for jar in sorted((Path(pyspark.__file__).parent / "jars").glob("*.jar")):
        digest.update(f"{jar} {int(jar.stat().st_mtime)}".encode())
    return _FOLDER / f"spark-{digest.hexdigest()[:16]}.jsa"


def option(java_home: Path | None = None) -> str:
    """Java's option that has the driver use its archive; empty where none was made."""
    archive = place(java_home)
    if archive is None or not archive.is_file():
        return ""
    return f'"-XX:SharedArchiveFile={archive}"'  # a path may have spaces


def make(java_home: Path, jars: Sequence[Path]) -> Path:
    """Has a Spark session do what a job does, and keeps the classes that it loaded.

    Args:
        java_home: Home of the Java that is to run Spark.
        jars: What Spark needs beside its own jars.

    Returns:
        The archive, which is there whole or not at all.

    Raises:
        OSError: There is no such Java, or the environment is not writable.
        subprocess.CalledProcessError: The session failed; what it printed is with the error.
        subprocess.TimeoutExpired: It did not end within ten minutes.
    """
    archive = place(java_home)
    if archive is None:
        raise FileNotFoundError(java_home)
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spark-", dir=archive.parent) as folder:
        made = Path(folder) / "spark.jsa"
        command = (sys.executable, "-m", "projections.spark.training", folder, made, java_home)
        subprocess.run(
            list(map(str, (*command, *jars))),
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRAINING_S,
        )
        for other in archive.parent.glob("spark-*.jsa"):
            other.unlink()  # of an older Spark or Java
        return made.replace(archive)
