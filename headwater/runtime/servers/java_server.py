"""What all servers on a Java runtime have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

JAVA_ENV: Final[Mapping[str, str | None]] = {
    # glibc keeps up to eight arenas per core, each with memory it never gives back.
    "MALLOC_ARENA_MAX": "2",
    # A user's options for other programs must not change our servers.
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
    """

    java: Path
    jars: tuple[Path, ...]

    def command(
        self, main: str, *arguments: str, heap_mb: int, options: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Command line of a main class with a bounded heap.

        Made for a small machine that many servers share: the serial collector costs the least
        memory and threads, and the second compiler would take both cores for the first minutes.
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
            "-Djava.awt.headless=true",
            "-Dfile.encoding=UTF-8",
            "-Duser.timezone=UTC",
            *options,
            "-cp",
            ":".join(map(str, self.jars)),
            main,
            *arguments,
        )
