"""The shared part of all servers on a Java runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

JAVA_ENV: Final[Mapping[str, str | None]] = {
    # By default, glibc keeps up to eight arenas per core, whose memory it never releases.
    "MALLOC_ARENA_MAX": "2",
    # Options that the user sets for other Java programs must not affect the servers.
    "JAVA_TOOL_OPTIONS": None,
    "_JAVA_OPTIONS": None,
    "JDK_JAVA_OPTIONS": None,
    "CLASSPATH": None,
}


@dataclass(frozen=True, slots=True)
class JavaProgram:
    """A Java runtime with a class path.

    Attributes:
        java: The ``java`` executable.
        jars: Class path in order.
        archive: Archive of the classes of the class path; None if there is none.
    """

    java: Path
    jars: tuple[Path, ...]
    archive: Path | None = None

    def command(
        self, main: str, *arguments: str, heap_mb: int, options: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Returns the command line of a main class with a bounded heap.

        The options suit a small machine with many servers: the serial collector needs the least
        memory and the fewest threads, and the C2 compiler would occupy both cores for minutes.
        """
        return (
            str(self.java),
            f"-Xmx{heap_mb}m",
            f"-Xms{min(heap_mb, 128)}m",
            "-XX:+UseSerialGC",
            "-XX:MaxMetaspaceSize=256m",
            "-XX:TieredStopAtLevel=1",
            "-XX:ReservedCodeCacheSize=96m",
            "-XX:-UsePerfData",
            "-XX:+ExitOnOutOfMemoryError",
            "-Xshare:auto",
            *(() if self.archive is None else (f"-XX:SharedArchiveFile={self.archive}",)),
            "-Djava.awt.headless=true",
            "-Dfile.encoding=UTF-8",
            "-Duser.timezone=UTC",
            *options,
            "-cp",
            ":".join(map(str, self.jars)),
            main,
            *arguments,
        )
