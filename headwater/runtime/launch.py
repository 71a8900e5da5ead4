"""Start one program so that it cannot outlive its supervisor; run as a script, then replaced.

A separate script, because what it does must happen between fork and exec, and running Python
there inside a threaded supervisor could deadlock. It imports nothing of ours: it runs isolated,
without site-packages.

Order matters: the kernel forgets the parent-death signal when a process changes its identity.
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
    """Take an identity, tie our life to the parent's, become the program."""
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
        # The supervisor died before the kernel knew whom to tell.
        sys.exit(1)
    os.execvp(program[0], program)  # noqa: S606  # replacing ourselves is the point


def _map_user(libc: ctypes.CDLL, user: int) -> None:
    """Be ``user`` in a user namespace of our own; files keep their real owner."""
    real = os.getuid()
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/uid_map").write_text(f"{user} {real} 1", "ascii")


if __name__ == "__main__":
    main(sys.argv[1:])
