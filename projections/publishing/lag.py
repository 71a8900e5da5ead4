"""Lag: how long it takes until what is committed now is there, in each view and store.

It is waited for, not reckoned: figures of how far each part is freeze when one of them hangs, and
grow while nothing is written. What has not come in time is told with the stage that it is at.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from projections.publishing.read_barrier import POLL_S, Stage, look

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from cdc.position_token import PositionToken
    from projections.definition.views import Store
    from projections.publishing.read_barrier import Lateness, ReadBarrier

_STAGES_S: Final = 1.0
"""How often it is asked which stage is behind, while it is waited."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How long a store of a view took.

    Attributes:
        view: The view.
        store: The store.
        seconds: Until it had what was committed before it began; None if it had not in time.
        late: Who is behind then.
    """

    view: str
    store: Store
    seconds: float | None = None
    late: Lateness | None = None


def measure(
    connection: psycopg.Connection[Any],
    token: PositionToken,
    views: Sequence[ReadBarrier],
    timeout_s: float,
) -> list[Lag]:
    """Waits for some views in all their stores, and tells how long each took.

    A view that waits for somebody is not waited for once all others are there.

    Args:
        connection: To the source, in autocommit.
        token: What is waited for, taken just now.
        views: The views, all of one source.
        timeout_s: How long at most, in seconds.

    Raises:
        TokenError: The token means nothing in this source.
    """
    began = time.monotonic()
    stages_at = began + _STAGES_S
    late: dict[tuple[str, Store], Lateness] = {}
    took: dict[tuple[str, Store], float] = {}
    waited = {(view.view, store): view for view in views for store in view.stores}
    while took.keys() != waited.keys():
        seen = look(connection, token, token.source)
        now = time.monotonic()
        there = [place for place in waited if place not in took and seen.reached(*place)]
        took |= dict.fromkeys(there, now - began)
        if now < min(stages_at, began + timeout_s):
            time.sleep(POLL_S)
            continue
        # each stage is some questions to the source
        stages_at = now + _STAGES_S
        late = {
            place: view.lateness(seen, place[1])
            for place, view in waited.items()
            if place not in took
        }
        if now >= began + timeout_s or all(each.stage is Stage.PAUSED for each in late.values()):
            break
    return [
        Lag(*place, took.get(place), None if place in took else late.get(place))
        for place in sorted(waited)
    ]
