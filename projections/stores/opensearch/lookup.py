"""Looks up indexed documents, for changes that omit unchanged values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from projections.definition.columns import DELETED_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cdc.values import Json
    from projections.stores.opensearch.client import SearchEngine

READ_BYTES: Final = 4 << 20
"""Target size of one response: omitted values are large ones."""

IDS_PER_LOOK_UP: Final = 1000
_FIRST: Final = 8

Stored = tuple[int, dict[str, "Json"]]
"""Version and fields of a document."""

NO_ROW: Final[Stored] = (0, {DELETED_FIELD: True})
"""Stands for a missing document."""


class StoredDocuments:
    """Looks up documents by id, a few megabytes at a time.

    Args:
        engine: The engine.
        index: The index.
    """

    def __init__(self, engine: SearchEngine, index: str) -> None:
        self._engine = engine
        self._index = index
        self._many = _FIRST

    def versions(self, ids: Iterable[str]) -> dict[str, int]:
        """Returns the versions of those that exist."""
        wanted = list(dict.fromkeys(ids))
        versions: dict[str, int] = {}
        for start in range(0, len(wanted), IDS_PER_LOOK_UP):
            answer = self._fetched(wanted[start : start + IDS_PER_LOOK_UP], {"_source": "false"})
            versions |= {doc["_id"]: doc["_version"] for doc in answer if doc.get("found")}
        return versions

    def fields(self, ids: Sequence[str], names: Iterable[str]) -> Iterator[dict[str, Stored]]:
        """Yields fields of documents in groups; each id occurs once.

        Args:
            ids: Ids of the documents.
            names: Names of the fields; empty for all of them.
        """
        wanted_fields = set(names)
        included = {"_source": "true"}
        if wanted_fields:
            included = {"_source_includes": ",".join({*wanted_fields, DELETED_FIELD})}
        wanted, start = list(dict.fromkeys(ids)), 0
        while start < len(wanted):
            part = wanted[start : start + self._many]
            start += len(part)
            documents = {
                doc["_id"]: (doc["_version"], doc["_source"]) if doc.get("found") else NO_ROW
                for doc in self._fetched(part, included)
            }
            yield documents
            size = sum(
                len(value)
                for _, source in documents.values()
                for value in source.values()
                if isinstance(value, str)
            )
            self._many = max(1, self._many // 2) if size > READ_BYTES else self._grown()

    def _grown(self) -> int:
        return min(IDS_PER_LOOK_UP, self._many * 2)

    def _fetched(self, ids: Sequence[str], options: dict[str, str]) -> list[dict[str, Any]]:
        path = f"/{self._index}/_mget?{urlencode(options)}"
        documents: list[dict[str, Any]] = self._engine.request("POST", path, {"ids": list(ids)})[
            "docs"
        ]
        return documents
