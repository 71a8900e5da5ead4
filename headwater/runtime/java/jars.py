"""Locked jars on disk: from the local Maven cache, downloaded if missing, always verified.

Normal use resolves no POM: the lock lists the jars. If all of them are cached, this module does not
use the network.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.runtime.java.errors import JarDamagedError, JarUnavailableError
from headwater.runtime.java.lock import LockedJar, read_lock
from headwater.runtime.java.progress import DownloadProgress, open_progress
from headwater.runtime.java.verified import VerifiedJars

if TYPE_CHECKING:
    from collections.abc import Iterable

DOWNLOADS_AT_ONCE: Final = 8
_HTTP_TIMEOUT_S: Final = 60
_ATTEMPTS: Final = 3


def ensure(env: str, *, progress: bool = True, repository: Path | None = None) -> list[Path]:
    """Returns the verified jars of an environment, in class-path order.

    Args:
        env: ``kafka``, ``opensearch`` or ``spark``.
        progress: Show downloads on stderr.
        repository: Maven repository folder; by default the user's own.

    Raises:
        JarDamagedError: A jar's bytes differ from the lock; the error names the file.
        JarUnavailableError: A jar is missing and could not be downloaded.
        LockUnreadableError: The environment or its lock does not exist.
    """
    jars = read_lock(env)
    folder = repository or default_repository()
    missing = [jar for jar in jars if not (folder / jar.path).is_file()]
    if missing:
        _download(missing, folder, env=env, progress=progress)
    verified = VerifiedJars.beside(folder)
    for jar in jars:
        _check(jar, folder / jar.path, verified)
    verified.save()
    return [folder / jar.path for jar in jars]


def damaged(env: str, *, repository: Path | None = None) -> list[Path]:
    """Returns the jars of an environment that differ from the lock; downloads nothing.

    A jar that was verified before and is unchanged since is not read again.
    """
    folder = repository or default_repository()
    verified = VerifiedJars.beside(folder)
    paths = ((jar, folder / jar.path) for jar in read_lock(env))
    return [
        path
        for jar, path in paths
        if path.is_file() and not verified.knows(path, jar.sha256) and sha256_of(path) != jar.sha256
    ]


def missing(env: str, *, repository: Path | None = None) -> list[LockedJar]:
    """Returns the jars of an environment that a start would download."""
    folder = repository or default_repository()
    return [jar for jar in read_lock(env) if not (folder / jar.path).is_file()]


def class_path(jars: Iterable[Path]) -> str:
    """Returns the jars as one ``-cp`` value."""
    return ":".join(str(jar) for jar in jars)


def default_repository() -> Path:
    """Returns the user's Maven repository, as jgo and Maven determine it."""
    from jgo.constants import default_maven_repo  # noqa: PLC0415  # jgo loads requests

    return Path(default_maven_repo())


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(jar: LockedJar, path: Path, verified: VerifiedJars) -> None:
    if verified.knows(path, jar.sha256):
        return
    found = sha256_of(path)
    if found != jar.sha256:
        raise JarDamagedError(
            f"the jar {path.name} is damaged",
            detail=f"{path}: sha256 {found}, locked {jar.sha256}",
            hint=f"rm {path}   (the next start downloads it again)",
        )
    verified.remember(path, jar.sha256)


def _download(jars: list[LockedJar], folder: Path, *, env: str, progress: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # The staging folder is on the cache's own file system, so that a finished jar is renamed
    # into place and a reader never sees half of one.
    with (
        tempfile.TemporaryDirectory(prefix=".headwater-", dir=folder) as staging,
        open_progress(f"{env} jars", files=len(jars), shown=progress) as bar,
        ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="jar") as pool,
    ):
        futures: list[Future[None]] = [
            pool.submit(_download_one, jar, folder, Path(staging) / str(number), bar)
            for number, jar in enumerate(jars)
        ]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _download_one(jar: LockedJar, folder: Path, staging: Path, bar: DownloadProgress) -> None:
    arrived = _fetch(jar, staging, bar)
    found = sha256_of(arrived)
    if found != jar.sha256:
        raise JarDamagedError(
            f"the downloaded jar {jar.path.name} is not the locked one",
            detail=f"{jar.coordinate}: sha256 {found}, locked {jar.sha256}",
            hint=(
                "retry; if the error remains, the configured Maven repository serves other bytes"
            ),
        )
    target = folder / jar.path
    target.parent.mkdir(parents=True, exist_ok=True)
    arrived.replace(target)
    bar.file_done()


def _fetch(jar: LockedJar, staging: Path, bar: DownloadProgress) -> Path:
    import requests  # noqa: PLC0415  # only a download needs it
    from jgo.maven import MavenContext  # noqa: PLC0415
    from jgo.maven._resolver import PythonResolver  # noqa: PLC0415

    failure: Exception | None = None
    for attempt in range(_ATTEMPTS):
        place = staging / str(attempt)
        resolver = PythonResolver(progress_callback=bar.for_file)
        context = MavenContext(resolver=resolver, repo_cache=place, timeout=_HTTP_TIMEOUT_S)
        component = context.project(jar.group, jar.artifact).at_version(jar.version)
        try:
            return Path(component.artifact(jar.classifier, "jar").resolve())
        except (requests.RequestException, RuntimeError, OSError) as error:
            failure = error
            shutil.rmtree(place, ignore_errors=True)
    raise JarUnavailableError(
        f"the jar {jar.path.name} could not be downloaded",
        detail=f"{jar.coordinate}: {type(failure).__name__}",
        hint="check the network, then run the same command again; finished jars are kept",
    ) from failure
