"""What a search engine keeps of former documents: segments have them until they are merged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from projections.errors import SinkUnavailableError

if TYPE_CHECKING:
    from projections.search.engine import SearchEngine

_MERGE: Final = "_forcemerge?only_expunge_deletes=true&wait_for_completion=false"
_ALL: Final = {"index": {"merge.policy.expunge_deletes_allowed": "0"}}
_USUAL: Final = {"index": {"merge.policy.expunge_deletes_allowed": None}}
_POLL_S: Final = 0.3


def expunge(engine: SearchEngine, place: str, deadline_s: float) -> list[str]:
    """Has segments merged that have documents of earlier times, and waits for it.

    Args:
        engine: The engine.
        place: Under which name a view is kept.
        deadline_s: Longest wait, seconds.

    Returns:
        The indices.

    Raises:
        SinkError: The engine refuses, does not answer, or is not done in time.
    """
    found = engine.request("GET", f"/_cat/indices/{place}-*?format=json&h=index")
    names = sorted(each["index"] for each in found)
    for name in names:
        engine.request("PUT", f"/{name}/_settings", _ALL)
        try:
            engine.request("POST", f"/{name}/_flush?force=true&wait_if_ongoing=true")
            asked = engine.request("POST", f"/{name}/{_MERGE}")
            _await(engine, asked["task"], deadline_s)
            # what was merged goes once it is committed, and searches use the new segment
            engine.request("POST", f"/{name}/_flush?force=true&wait_if_ongoing=true")
            engine.request("POST", f"/{name}/_refresh")
        finally:
            engine.request("PUT", f"/{name}/_settings", _USUAL)
    return names


def _await(engine: SearchEngine, task: str, deadline_s: float) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        said: Any = engine.request("GET", f"/_tasks/{task}")
        if said.get("completed"):
            return
        if time.monotonic() > deadline:
            raise SinkUnavailableError(
                "search has not merged its segments in time",
                detail=f"after {deadline_s:.0f} s",
                hint="ask again later: it goes on by itself",
            )
        time.sleep(_POLL_S)
