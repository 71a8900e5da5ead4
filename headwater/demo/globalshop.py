"""GlobalShop as the demo's workload."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import examples.globalshop
from examples.globalshop import seed
from headwater.demo.traffic import ChildTraffic, Written, python_module
from headwater.demo.workload import Probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater.demo.result import Invariant
    from headwater.demo.traffic import Traffic
    from headwater.demo.workload import SumReader

FOLDER = Path(examples.globalshop.__file__).parent


@dataclass(frozen=True, slots=True)
class GlobalShop:
    """A shop: orders, customers, products, stock and payments."""

    name: ClassVar[str] = "globalshop"
    title: ClassVar[str] = "GlobalShop"
    settings_file: ClassVar[Path] = FOLDER / "headwater.toml"
    probe: ClassVar[Probe] = Probe(
        view="inventory",
        key={"warehouse": seed.PROBE_WAREHOUSE, "sku": seed.PROBE_SKU},
        column="on_hand",
        update=f"UPDATE inventory SET on_hand = %s WHERE sku = '{seed.PROBE_SKU}'",  # noqa: S608
    )

    def prepare(self, dsn: str, scale: float) -> int:
        """Creates the schema and copies the first rows in."""
        return sum(seed.prepare(dsn, scale=scale).values())

    def start_traffic(self, dsn: str, rate: float, seconds: float) -> Traffic:
        """Starts customers ordering, paying, changing their minds."""
        return ChildTraffic(
            python_module("examples.globalshop.traffic"),
            read_report,
            wish={"dsn": dsn, "rate": rate, "seconds": seconds},
        )

    def invariants(self, dsn: str, stores: Mapping[str, SumReader]) -> tuple[Invariant, ...]:
        """None beyond the comparison of every row."""
        del dsn, stores
        return ()


def read_report(line: str) -> Written | None:
    """Reads a line of the traffic's report; None if it is not one."""
    try:
        fields = json.loads(line)
        return Written(
            fields["changes"], fields["transactions"], fields["rolled_back"], fields["seconds"]
        )
    except (ValueError, KeyError, TypeError):
        return None
