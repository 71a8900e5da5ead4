"""What the job says of itself: of every view in every store, as the files in its folder have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.runtime.home import read_json
from projections.common.fault import Fault
from projections.definition.views import view_of

if TYPE_CHECKING:
    from pathlib import Path

    ViewInStore = tuple[str, str]


class JobReport:
    """What the job said last; each answer is read again. There is none before its first start.

    Args:
        folder: Where it writes that.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def error(self) -> str | None:
        """Why the job ended, with its code; while it starts, why the one before it did."""
        error = self._job.get("error")
        if not error:
            return None
        return ": ".join(filter(None, (error["code"], error["message"], error["detail"])))

    def records(self) -> dict[ViewInStore, dict[str, int]]:
        """Returns by view and store what became of its records since the job started."""
        return {
            (view, store): counts
            for store, query in self._queries.items()
            for view, counts in query.get("views", {}).items()
        }

    def unexpected(self) -> dict[ViewInStore, dict[str, int]]:
        """Returns by view and store the rows since the job started that failed an expectation."""
        found = {
            (view, store): counts
            for store, query in self._queries.items()
            for view, counts in query.get("failed", {}).items()
        }
        for view, kept in self.derived().items():
            if kept.get("failed"):
                found[view, "table"] = kept["failed"]
        return found

    def backlogs(self) -> dict[str, dict[str, Any]]:
        """Returns by store the records that the job has still to read, if more than one batch.

        For the keys, see `QueryBacklog.figures`.
        """
        return {
            store: query["backlog"]
            for store, query in self._queries.items()
            if query.get("backlog")
        }

    def loads(self) -> list[dict[str, Any]]:
        """Returns the views that are being loaded from their source; see `LoadProgress`."""
        return [query["load"] for query in self._queries.values() if query.get("load")]

    def store_errors(self) -> dict[str, dict[str, Any]]:
        """Returns the error of each store whose query does not run at the moment."""
        return _errors(self._queries)

    def fault_of(self, view: str, store: str) -> Fault | None:
        """Returns why the job cannot write a view to a store at the moment; None if it can."""
        state = self.derived().get(view, {}).get("stores", {}).get(store, {})
        error = self.store_errors().get(store) or state.get("error")
        return Fault(**error) if error else None

    def attendant_errors(self) -> dict[str, dict[str, Any]]:
        """Returns the error of each part of the job beside its queries that is restarted."""
        return _errors(self._job.get("attendants", {}))

    def halted(self) -> dict[ViewInStore, str]:
        """Returns by view and store why a view is paused there, and not in its other stores."""
        return {
            (view["view"], store): view["error"]["code"]
            for view in self._job.get("paused", ())
            for store in view["stores"]
        }

    def failing_derived(self) -> dict[ViewInStore, str]:
        """Returns by view and store the error's code of a derived view that is not kept there."""
        found = {}
        for view, of_view in self.derived().items():
            stores = {"table": of_view, **of_view.get("stores", {})}
            for store, state in stores.items():
                if error := state["error"] or of_view["error"]:
                    found[view, store] = error["code"]
        return found

    def views(self) -> frozenset[str]:
        """Returns the views that the job keeps, by the names that they are declared with."""
        names = {view for view, _ in self.records()} | {view for view, _ in self.halted()}
        return frozenset(view_of(name) for name in names | self.derived().keys())

    def derived(self) -> dict[str, Any]:
        """Returns how each derived view is kept."""
        return read_json(self._folder / "derived.json") or {}

    @property
    def _job(self) -> dict[str, Any]:
        return read_json(self._folder / "job.json") or {}

    @property
    def _queries(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._job.get("queries", {})
        return found


def _errors(parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: state["error"] for name, state in parts.items() if state.get("error")}
