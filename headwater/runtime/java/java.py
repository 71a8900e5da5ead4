"""Finds a Java runtime that can run Kafka, OpenSearch and Spark."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.runtime.java.errors import JavaIncompleteError, JavaMissingError, JavaTooOldError

MAJOR_MIN: Final = 17
"""Spark 4 and Kafka 4 are compiled for Java 17."""

MODULE_NEEDED: Final = "jdk.incubator.vector"
"""Spark's launcher always adds this module; a JVM without it refuses to start."""

INSTALL_HINT: Final = "apt-get install openjdk-17-jre-headless   (or set JAVA_HOME to a Java 17+)"
_PROBE_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Java:
    """A usable Java runtime.

    Attributes:
        path: The ``java`` executable.
        major: Major version, such as 17.
    """

    path: Path
    major: int

    @property
    def home(self) -> Path:
        """Value of ``JAVA_HOME`` for tools that require it, such as Spark's launcher."""
        return self.path.resolve().parent.parent


def find_java(java_home: str | None = None, *, search_path: str | None = None) -> Java:
    """Returns the first suitable runtime of ``java_home`` and the search path.

    Args:
        java_home: Value of ``JAVA_HOME``, if set; only the settings read the environment.
        search_path: Folders joined by ``:``; by default the process's ``PATH``.

    Raises:
        JavaMissingError: There is no Java runtime.
        JavaTooOldError: All runtimes are older than 17.
        JavaIncompleteError: All runtimes lack the module that Spark needs.
    """
    candidates = _candidates(java_home, search_path)
    seen: list[str] = []
    incomplete: list[str] = []
    for path in candidates:
        described = _described(path)
        if described is not None:
            return described
        major = _major(path)
        if major is None:
            continue
        seen.append(f"Java {major} at {path}")
        if major < MAJOR_MIN:
            continue
        if MODULE_NEEDED in _modules(path):
            return Java(path, major)
        incomplete.append(f"Java {major} at {path}")
    if incomplete:
        raise JavaIncompleteError(
            f"the Java runtime lacks the module {MODULE_NEEDED}",
            detail="; ".join(incomplete),
            hint=INSTALL_HINT,
        )
    if seen:
        raise JavaTooOldError(
            f"Java {MAJOR_MIN} or later is needed", detail="; ".join(seen), hint=INSTALL_HINT
        )
    looked_at = f"JAVA_HOME={java_home}, then PATH" if java_home else "PATH"
    raise JavaMissingError(
        "no Java runtime was found", detail=f"looked at {looked_at}", hint=INSTALL_HINT
    )


def _candidates(java_home: str | None, search_path: str | None) -> list[Path]:
    found = [Path(java_home) / "bin" / "java"] if java_home else []
    on_path = shutil.which("java", path=search_path)
    if on_path:
        found.append(Path(on_path))
    return [path for path in found if path.is_file()]


def _described(path: Path) -> Java | None:
    """Returns a runtime that is suitable by its file `release`; None if the file does not tell.

    Reading the file avoids two starts of a JVM, which would dominate the time of short commands.
    """
    try:
        text = (path.resolve().parent.parent / "release").read_text("utf-8", "replace")
    except OSError:
        return None
    said = dict(re.findall(r'^(JAVA_VERSION|MODULES)="([^"]*)"', text, re.MULTILINE))
    major = _number(said.get("JAVA_VERSION", ""))
    if major is None or major < MAJOR_MIN or MODULE_NEEDED not in said.get("MODULES", "").split():
        return None
    return Java(path, major)


def _output(path: Path, argument: str) -> str:
    try:
        done = subprocess.run(
            [str(path), argument],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _major(path: Path) -> int | None:
    found = re.search(r'version "([^"]+)', _output(path, "-version"))
    return None if found is None else _number(found[1])


def _number(version: str) -> int | None:
    found = re.match(r"(\d+)(?:\.(\d+))?", version)
    if found is None:
        return None
    first, second = found.groups()
    # Java 8 and older report versions such as 1.8.
    return int(second) if first == "1" and second else int(first)


def _modules(path: Path) -> set[str]:
    lines = _output(path, "--list-modules").splitlines()
    return {line.partition("@")[0].strip() for line in lines}
