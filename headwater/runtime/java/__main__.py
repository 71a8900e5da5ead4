"""``python -m headwater.runtime.java lock|fetch [environment ...]``, or ``archive``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.runtime.java.jars import ensure
from headwater.runtime.java.java import find_java
from headwater.runtime.java.lock import ENVIRONMENTS, refresh_lock
from projections.job.spark import class_archive

if TYPE_CHECKING:
    from collections.abc import Callable


def main(arguments: list[str] | None = None) -> int:
    """Refreshes the locks, downloads the locked jars, or archives Spark's classes."""
    parser = argparse.ArgumentParser(
        prog="python -m headwater.runtime.java", description=main.__doc__
    )
    parser.add_argument("verb", choices=["lock", "fetch", "archive"])
    parser.add_argument("environments", nargs="*", default=list(ENVIRONMENTS))
    parser.add_argument("--java-home", metavar="FOLDER", help="the Java that is to run Spark")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.verb == "archive":
            _archive(chosen.java_home)
            return 0
        count: Callable[[str], int] = refresh_lock if chosen.verb == "lock" else _fetched
        for env in chosen.environments:
            _say(f"{env}: {count(env)} jars")
    except HeadwaterError as error:
        _say(f"{error.code}: {error.message}\n{error.detail}\n{error.hint}")
        return error.exit_code
    return 0


def _fetched(env: str) -> int:
    return len(ensure(env))


def _archive(java_home: str | None) -> None:
    """Creates the class archive; a failure is only reported, because Spark starts without it."""
    home = find_java(java_home).home
    if class_archive.existing(home) is not None:
        return
    _say("spark: archiving the classes that a job loads, once, for a faster start ...")
    try:
        made = class_archive.make(home, ensure("spark"))
    except (OSError, subprocess.SubprocessError) as error:
        _say(f"spark: no class archive, so Spark starts more slowly: {_reason(error)}")
        return
    _say(f"spark: class archive of {made.stat().st_size >> 20} MiB")


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    """Returns the last line that the session printed, or the text of the error."""
    printed: bytes = getattr(error, "stderr", None) or b""
    lines = printed.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(error)


def _say(message: str) -> None:
    sys.stderr.write(f"{message}\n")


if __name__ == "__main__":
    sys.exit(main())
