"""The application of the containers: GlobalShop, which writes to Postgres and to nothing else."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Final

from examples.globalshop import seed
from examples.globalshop.traffic import Traffic
from headwater.project.settings import load

SETTINGS: Final = Path("/etc/headwater/headwater.toml")
OPEN: Final = Path("/tmp/shop-is-open")  # noqa: S108  # the container's own
CHANGES_PER_S: Final = 20.0


def main() -> None:
    """Fill the database unless it is full, then take orders until the container stops."""
    dsn = load(SETTINGS).for_source("shop").dsn
    if dsn is None:
        sys.exit(f"{SETTINGS} gives the source shop no dsn")
    address = dsn.get_secret_value()
    rows = seed.prepare(address)
    if rows:
        sys.stdout.write(f"filled {len(rows)} tables with {sum(rows.values())} rows\n")
    OPEN.touch()
    traffic = Traffic(CHANGES_PER_S)
    signal.signal(signal.SIGTERM, lambda *_: traffic.stop.set())
    traffic.run(address)


if __name__ == "__main__":
    main()
