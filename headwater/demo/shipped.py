"""The built-in workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.demo.globalshop import GlobalShop, GlobalShopLive
from headwater.demo.pgbench import Pgbench

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.demo.workload import Workload


def workloads() -> dict[str, Callable[[], Workload]]:
    """Returns the constructors of the workloads, by name."""
    made = (GlobalShop, GlobalShopLive, Pgbench)
    return {each.name: each for each in made}
