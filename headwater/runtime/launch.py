"""Starts one program that cannot outlive its supervisor; runs as a script that execs the program.

It is a separate script because its work belongs between fork and exec, where Python code of a
threaded supervisor could deadlock. It imports no module of Headwater: it runs isolated, without
site-packages.

The order matters: the kernel clears the parent-death signal when a process changes its identity.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000


def main(arguments: list[str]) -> None:
    """Assumes the identity, requests a signal at the parent's death, and execs the program."""
    split = arguments.index("--")
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--death-signal", type=int, required=True)
    parser.add_argument("--map-user", type=int)
    parser.add_argument("--user", type=int)
    parser.add_argument("--group", type=int)
    options = parser.parse_args(arguments[:split])
    program = arguments[split + 1 :]
    libc = ctypes.CDLL(None, use_errno=True)
    if options.map_user is not None:
        _map_user(libc, options.map_user)
    elif options.user is not None:
        os.setgroups([])
        os.setgid(options.group)
        os.setuid(options.user)
    if libc.prctl(_PR_SET_PDEATHSIG, options.death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != options.parent:
        # The supervisor died before the parent-death signal was set.
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606  # exec replaces this process


def _map_user(libc: ctypes.CDLL, user: int) -> None:
    """Maps this process to ``user`` in a new user namespace; files keep their real owner."""
    real = os.getuid()
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/uid_map").write_text(f"{user} {real} 1", "ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
