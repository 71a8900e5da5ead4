"""Builds the converter's jar from its sources: ``python setup/converter.py``.

The same sources and the same release of the compiler give the same bytes, whenever and wherever it
is built. The manifest keeps the sources' checksum, so that a test can tell a jar that is old.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from cdc.connect.converter import JAR, SOURCES
from headwater.runtime.java.jars import class_path, ensure

RELEASE: Final = "17"
MANIFEST: Final = "META-INF/MANIFEST.MF"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the oldest time that a zip can hold


def main() -> int:
    """Build the jar anew.

    Returns:
        The exit code: 0, or 4 where there is no compiler.
    """
    if compiler() is None:
        sys.stderr.write("no javac on the PATH: install a JDK, for example openjdk-17-jdk\n")
        return 4
    write_jar(JAR, classes())
    sys.stderr.write(f"{JAR}: {JAR.stat().st_size} bytes\n")
    return 0


def compiler() -> str | None:
    """Major version of the ``javac`` on the PATH; None without one."""
    path = shutil.which("javac")
    if path is None:
        return None
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=True)
    found = re.search(r"\d+", said.stdout + said.stderr)
    return found[0] if found else None


def classes() -> dict[str, bytes]:
    """Compiles the sources against the locked jars; class files by their names in a jar."""
    jars = class_path(ensure("kafka", progress=False))
    with tempfile.TemporaryDirectory() as folder:
        options = ["--release", RELEASE, "-g:source,lines", "-Xlint:all", "-Werror", "-proc:none"]
        command = ["javac", *options, "-cp", jars, "-d", folder, *map(str, SOURCES)]
        subprocess.run(command, check=True)
        found = sorted(Path(folder).rglob("*.class"))
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def manifest() -> dict[str, str]:
    """What the manifest says of how the jar was made."""
    return {
        "Manifest-Version": "1.0",
        "Build-Jdk-Spec": compiler() or "",
        "Source": " ".join(source.name for source in SOURCES),
        "Source-SHA-256": hashlib.sha256(b"".join(s.read_bytes() for s in SOURCES)).hexdigest(),
    }


def write_jar(path: Path, contents: dict[str, bytes]) -> None:
    """Writes a jar whose bytes depend on nothing but its contents."""
    lines = "".join(_line(name, value) for name, value in manifest().items()) + "\r\n"
    with zipfile.ZipFile(path, "w") as jar:
        for name, data in {MANIFEST: lines.encode(), **contents}.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            jar.writestr(entry, data, zipfile.ZIP_STORED)


def _line(name: str, value: str) -> str:
    # a line of a manifest holds 72 bytes with its end; the rest goes on the next, after a blank
    line = f"{name}: {value}"
    parts = [line[:70], *(line[at : at + 69] for at in range(70, len(line), 69))]
    return "\r\n ".join(parts) + "\r\n"


if __name__ == "__main__":
    sys.exit(main())
