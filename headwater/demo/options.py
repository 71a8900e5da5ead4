"""What the demo shall do."""

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
        seconds: How long traffic runs.
        rate: Row changes per second.
        scale: How many rows there are to begin with: 1 makes 20,000, or 100,000 of pgbench.
        home: Folder of all state; wiped first, and only if a demo made it.
        keep: Leave everything running at the end.
        chaos: What to kill while traffic runs, in this order: `kafka`, `connect`, `spark`.
        rebuild: Rebuild a view while traffic runs, show it and take it back.
        save_screen: File for a picture of the last screen, as SVG.
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
