"""How a test waits inside an event loop."""

from __future__ import annotations

import asyncio

from tests.waiting import wait_until

WAIT_S = 30


async def until(condition) -> None:
    await asyncio.to_thread(wait_until, condition, timeout_s=WAIT_S)
