"""``python -m headwater.supply lock|fetch [environment ...]``."""

from __future__ import annotations

import argparse
import sys

from headwater.errors import HeadwaterError
from headwater.supply.jars import ensure
from headwater.supply.lock import ENVIRONMENTS, refresh_lock


def main(arguments: list[str] | None = None) -> int:
    """Refresh the locks, or bring every locked jar onto this machine."""
    parser = argparse.ArgumentParser(prog="python -m headwater.supply", description=main.__doc__)
    parser.add_argument("verb", choices=["lock", "fetch"])
    parser.add_argument("environments", nargs="*", default=list(ENVIRONMENTS))
    chosen = parser.parse_args(arguments)
    try:
        for env in chosen.environments:
            count = refresh_lock(env) if chosen.verb == "lock" else len(ensure(env))
            sys.stderr.write(f"{env}: {count} jars\n")
    except HeadwaterError as error:
        sys.stderr.write(f"{error.code}: {error.message}\n{error.detail}\n{error.hint}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
