"""GlobalShop's views, and a home for a demo that leaves nothing running."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VIEWS: Final = {
    "customers",
    "products",
    "inventory",
    "orders",
    "order_items",
    "payments",
    "order_events",
    "order_document",
    "product_document",
    "sales_by_status",
    "payments_by_method",
    "stock_by_warehouse",
    "best_sellers",
    "customer_card",
}
HISTORIES: Final = {"orders_history", "products_history"}


def left_running(home: Path) -> list[str]:
    """Programs that still have this home among their arguments."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(home) in words and process.pid != os.getpid() and "pytest" not in words:
            found.append(process.name())
    return found


@pytest.fixture
def demo_home(tmp_path) -> Iterator[Path]:
    folder = tmp_path / ".headwater"
    yield folder
    assert left_running(folder) == []
