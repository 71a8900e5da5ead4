"""Builds ``.venv`` from the locks; does nothing when nothing changed.

Runs on the machine's own Python with the standard library only. A stamp of everything that the
environment is made from tells whether there is work to do, so a second run needs no network.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
PYTHON: Final = VENV / "bin" / "python"
# uv lives in an environment of its own: syncing the main one removes what its lock does not name.
SETUP: Final = VENV / "setup"
UV: Final = SETUP / "bin" / "uv"
STAMP: Final = VENV / "headwater-setup.stamp"
INPUTS: Final = ("requirements.uv.lock", "requirements.lock", "pyproject.toml")
MISSING_DEPENDENCY: Final = 4


class SetupError(Exception):
    """What is missing on this machine, and the command that brings it."""


def main() -> int:
    """Bring ``.venv`` to what the locks say.

    Returns:
        The exit code: 0, or 4 when the machine lacks something.
    """
    try:
        with _only_one():
            if not _up_to_date():
                _build()
    except SetupError as error:
        _say(str(error))
        return MISSING_DEPENDENCY
    except subprocess.CalledProcessError as error:
        _say(f"failed: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


def _build() -> None:
    STAMP.unlink(missing_ok=True)
    if not _works(PYTHON):
        with _step("virtual environment"):
            _run(sys.executable, "-m", "venv", "--clear", "--without-pip", VENV)
    if not _uv_is_current():
        with _step("uv, which installs the rest"):
            _install_uv()
    with _step("python packages from requirements.lock"):
        _uv("sync", "--require-hashes", ROOT / "requirements.lock")
    with _step("headwater itself, editable"):
        # Its build backend comes from the lock, so this needs no network.
        _uv("install", "--no-deps", "--no-build-isolation", "--offline", "--editable", ROOT)
    STAMP.write_text(_fingerprint())
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        _say("no java found; demo and tests need 17 or newer: apt-get install default-jre-headless")


def _install_uv() -> None:
    pip: tuple[str | Path, ...]
    if importlib.util.find_spec("ensurepip") is not None:
        _run(sys.executable, "-m", "venv", "--clear", SETUP)
        pip = (SETUP / "bin" / "python", "-m", "pip")
    elif importlib.util.find_spec("pip") is not None:
        _run(sys.executable, "-m", "venv", "--clear", "--without-pip", SETUP)
        pip = (sys.executable, "-m", "pip", "--python", SETUP / "bin" / "python")
    else:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        message = (
            f"{sys.executable} has neither ensurepip nor pip\n"
            f"  on Debian or Ubuntu:  apt-get install python{version}-venv"
        )
        raise SetupError(message)
    lock = ROOT / "requirements.uv.lock"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    _run(*pip, "install", *quiet, "--require-hashes", "--only-binary=:all:", "-r", lock)


def _uv(verb: str, *arguments: str | Path) -> None:
    environment = {**os.environ, "VIRTUAL_ENV": str(VENV)}
    environment.update(_index_of_pip(environment))
    shown = () if sys.stderr.isatty() else ("--quiet",)
    command = [UV, "--no-config", "pip", verb, *shown, "--python", PYTHON, *arguments]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)


def _index_of_pip(environment: dict[str, str]) -> dict[str, str]:
    """A mirror or certificate that pip was told of, in uv's words; uv reads no pip settings."""
    asked = (str(SETUP / "bin" / "python"), "-m", "pip", "config", "list")
    listed = subprocess.run(asked, capture_output=True, text=True, check=False)
    pairs = (line.partition("=") for line in listed.stdout.splitlines())
    options = {key.rpartition(".")[2]: value.strip("'\"") for key, _, value in pairs}
    names = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    return {
        names[option]: value
        for option, value in options.items()
        if option in names and names[option] not in environment
    }


def _works(python: Path) -> bool:
    """Whether the environment's interpreter starts, is new enough and was made for this folder.

    The scripts of an environment name its folder, so one that was moved is of no use.
    """
    activate = python.with_name("activate")
    if not python.exists() or str(VENV) not in activate.read_text():
        return False
    probe = "import sys; print(sys.prefix); sys.exit(sys.version_info < (3, 11))"
    answer = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and Path(answer.stdout.strip()) == VENV


def _uv_is_current() -> bool:
    pinned = (ROOT / "requirements.uv.lock").read_text().split()[0].removeprefix("uv==")
    if not UV.exists():
        return False
    answer = subprocess.run([UV, "--version"], capture_output=True, text=True, check=False)
    return answer.stdout.split()[1:2] == [pinned]


def _up_to_date() -> bool:
    return STAMP.exists() and STAMP.read_text() == _fingerprint() and _works(PYTHON)


def _fingerprint() -> str:
    """Digest of what the environment is made from, its own place included."""
    digest = hashlib.sha256(str(VENV).encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


@contextmanager
def _only_one() -> Iterator[None]:
    """Two setups in one folder take turns."""
    with (ROOT / "pyproject.toml").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@contextmanager
def _step(what: str) -> Iterator[None]:
    _say(f"{what} ...")
    began = time.monotonic()
    yield
    _say(f"{what}: done in {time.monotonic() - began:.1f} s")


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def _say(message: str) -> None:
    sys.stderr.write(f"setup: {message}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
