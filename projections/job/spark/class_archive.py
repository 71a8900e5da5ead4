"""The classes of Spark's JVMs as they have them in memory, read at their start instead of jars.

A driver loads some twenty thousand classes; to find, parse and verify them is a third of the
processor time until the first batches are through. Java writes them into one file when a JVM ends
(`-XX:ArchiveClassesAtExit`, JEP 350), which the next one maps.

An archive can be used only with the Java and the jars that it was made with. Its name therefore
identifies them, and has its size; Java also compares them, and ignores an archive that does not
fit. It is stored in the Python environment whose jars it was made from, and is deleted with it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_FOLDER: Final = Path(sys.prefix) / "share" / "headwater"
_TRAINING_S: Final = 600


def existing(java_home: Path | None = None) -> Path | None:
    """Returns the archive for a Java, if one was made.

    Args:
        java_home: Home of the Java that runs Spark; None for the one on the search path.
    """
    key = _key(java_home)
    if key is None:
        return None
    whole = (path for path in _FOLDER.glob(f"spark-{key}-*.jsa") if _whole(path))
    return next(whole, None)


def option(java_home: Path | None = None) -> str:
    """Java's option that has the driver use its archive; empty where none was made."""
    archive = existing(java_home)
    return "" if archive is None else f'"-XX:SharedArchiveFile={archive}"'  # it may have spaces


def make(java_home: Path, jars: Sequence[Path]) -> Path:
    """Has a Spark session do what a job does, and keeps the classes that it loaded.

    Args:
        java_home: Home of the Java that is to run Spark.
        jars: The jars that Spark needs beside its own.

    Returns:
        The archive, which is there whole or not at all.

    Raises:
        OSError: There is no such Java, or the environment is not writable.
        subprocess.CalledProcessError: The session failed; what it printed is with the error.
        subprocess.TimeoutExpired: It did not end within ten minutes.
    """
    key = _key(java_home)
    if key is None:
        raise FileNotFoundError(java_home)
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".spark-", dir=_FOLDER) as folder:
        made = Path(folder) / "spark.jsa"
        command = (sys.executable, "-m", "projections.job.spark.training", folder, made, java_home)
        subprocess.run(
            list(map(str, (*command, *jars))),
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRAINING_S,
        )
        with made.open("rb") as file:
            os.fsync(file)
        for other in _FOLDER.glob("spark-*.jsa"):
            other.unlink(missing_ok=True)  # of an older Spark or Java
        return made.replace(_FOLDER / f"spark-{key}-{made.stat().st_size}.jsa")


def _key(java_home: Path | None) -> str | None:
    """What tells the Java and the jars of an archive; None where there is no such Java."""
    java = (java_home / "bin" / "java") if java_home else Path(shutil.which("java") or "")
    if not java.is_file():
        return None
    java = java.resolve()
    digest = hashlib.sha256(str(java).encode())
    release = java.parents[1] / "release"
    if release.is_file():
        digest.update(release.read_bytes())
    found = importlib.util.find_spec("pyspark")  # its import takes most of a second
    for place in (found.submodule_search_locations or []) if found else []:
        for jar in sorted((Path(place) / "jars").glob("*.jar")):
            # whole seconds, as Java compares: a file that was packed and unpacked has no more
            digest.update(f"{jar} {int(jar.stat().st_mtime)}".encode())
    return digest.hexdigest()[:16]


def _whole(path: Path) -> bool:
    """Returns whether an archive has the size in its name: a truncated one crashes Java."""
    try:
        return path.stat().st_size == int(path.stem.rpartition("-")[2])
    except (OSError, ValueError):
        return False
