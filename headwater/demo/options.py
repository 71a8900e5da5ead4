"""The options of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_HOME: Final = Path(".headwater")


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of `headwater demo`.

    Attributes:
        workload: `globalshop` or `pgbench`.
        seconds: Duration of the traffic.
        rate: Row changes per second.
        scale: Initial number of rows: 1 gives 20,000, or 100,000 with pgbench.
        home: Home folder; emptied first, but only if a demo created it.
        keep: Whether everything keeps running at the end.
        chaos: Components to kill during the traffic, in order: `kafka`, `connect`, `spark`.
        rebuild: Whether to rebuild a view during the traffic, and to cut over and roll back.
        save_screen: File for an SVG picture of the last screen.
    """

    workload: str = "globalshop"
    seconds: float = 30.0
    rate: float = 200.0
    scale: float = 1.0
    home: Path = DEFAULT_HOME
    keep: bool = False
    chaos: tuple[str, ...] = ()
    rebuild: bool = False
    save_screen: Path | None = None
