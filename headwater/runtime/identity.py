"""The user as which a server runs: Postgres refuses root."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.runtime.errors import AccountError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_ACCOUNTS: Final = ("postgres", "nobody")
_CHECK_TIMEOUT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Identity:
    """The user as which a program runs.

    Attributes:
        map_user: User id inside a user namespace; outside, files belong to the calling user.
        user: Real user id, if user namespaces are forbidden.
        group: Real group id that belongs to ``user``.
    """

    map_user: int | None = None
    user: int | None = None
    group: int | None = None


OURSELVES: Final = Identity()


def launcher(
    argv: Sequence[str],
    *,
    identity: Identity = OURSELVES,
    death_signal: signal.Signals = signal.SIGKILL,
) -> list[str]:
    """Returns a command line that runs ``argv`` as an identity, and ends with this process."""
    options = ["--parent", str(os.getpid()), "--death-signal", str(int(death_signal))]
    for name in ("map_user", "user", "group"):
        value = getattr(identity, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return [sys.executable, "-I", "-S", _LAUNCH, *options, "--", *argv]


def unprivileged(*, home: Path, data: Path, program: Path) -> Identity:
    """Returns an identity as which Postgres agrees to run.

    As root, the first choice is a user namespace: it needs no account, and the files still belong
    to root. If the kernel forbids it, the function chooses an existing account that can reach
    the program and the data.

    Args:
        home: The home folder; made searchable, but not readable, by the account if necessary.
        data: Folder that the program must own; its owner is changed to the identity.
        program: The program.

    Raises:
        AccountError: Neither choice works; the error names the reason.
    """
    if os.geteuid() != 0:
        return OURSELVES
    mapped = Identity(map_user=_some_user())
    if _works(mapped, program):
        _give(data, os.geteuid(), os.getegid())
        return mapped
    for name in _ACCOUNTS:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        dropped = Identity(user=account.pw_uid, group=account.pw_gid)
        home.chmod(0o711)
        _give(data, account.pw_uid, account.pw_gid)
        if _works(dropped, program) and _reaches(dropped, data):
            return dropped
    raise AccountError(
        "postgres refuses to run as root, and no other account can run it",
        detail=f"user namespaces are forbidden; {' and '.join(_ACCOUNTS)} cannot reach "
        f"{program.parent} or {data}",
        hint="run headwater as an ordinary user, or name a running Postgres by its DSN",
    )


def _give(folder: Path, user: int, group: int) -> None:
    """Changes the owner of a folder and everything below, if necessary."""
    if folder.stat().st_uid == user:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, user, group, follow_symlinks=False)


def _some_user() -> int:
    # initdb looks up the name of its user id, so the id must exist in the user database.
    users = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in _ACCOUNTS:
        if name in users:
            return users[name]
    return next(iter(users.values()), 65534)


def _works(identity: Identity, program: Path) -> bool:
    return _succeeds(identity, [str(program), "--version"])


def _reaches(identity: Identity, folder: Path) -> bool:
    return _succeeds(identity, ["test", "-w", str(folder)])


def _succeeds(identity: Identity, argv: list[str]) -> bool:
    try:
        done = subprocess.run(
            launcher(argv, identity=identity),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
