"""What the workers of a distributed run do in which order.

Each worker has servers of its own and takes whole files. The longest files come first: one that
came last would keep one worker busy while the other has nothing left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not hasattr(config, "workerinput"):
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # else as they were: in random order
