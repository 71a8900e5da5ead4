"""CacheReader: reads a view from the cache, for applications.

It only needs the server and the names: the active version of the view, and its layout, are stored
beside its rows. It reads the present rows, and reports whether the view may still be incomplete.
Every response includes the name of the active version, from the same transaction: a caller that
reads during a cutover sees the old or the new version, never both.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from cdc.table import Column, ColumnKind, TableName, TableSchema
from cdc.values import word_of
from projections.changes.documents import key_text
from projections.definition.cache_options import ROWS, CacheLayout, CacheOptions, NameTemplate
from projections.definition.views import Store
from projections.errors import CacheUnknownError
from projections.planning.view_plan import ViewPlan
from projections.stores.valkey.client import CacheServer, translated_errors
from projections.stores.valkey.row import CacheForm, expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import redis

    from cdc.values import Json

LIMIT: Final = 100
"""Default limit of keys in one result."""

_COUNT: Final = 1000  # per step of a scan


@dataclass(frozen=True, slots=True)
class Count:
    """The value of a counter.

    Attributes:
        rows: Number of rows; for a counter with a column, of rows that have a value.
        sum: Exact sum of the values; None for a counter of rows.
    """

    rows: int
    sum: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank on a leaderboard.

    Attributes:
        key: Text of the row's key.
        score: Its score; for a timestamp, microseconds since 1970, UTC.
    """

    key: str
    score: Decimal


class CacheReader:
    """Reads one view.

    The name of a lookup, counter or leaderboard is its pattern with values instead of columns. Pass
    it complete (`"customer:42:orders"`), or as the pattern and its values, which then may contain
    any characters (`"customer:{customer_id}:orders", customer_id=42`).

    Args:
        url: `redis://…` or `unix://…`; it can be a replica.
        prefix: Namespace of the project: the source's name and a colon.
        view: The view.

    Raises:
        SinkError: The server refuses or does not answer.
        CacheUnknownError: The cache has no such view.
    """

    def __init__(self, url: str, prefix: str, view: str) -> None:
        self._server = CacheServer(url, prefix)
        self._view = view
        try:
            self._lay_out()
        except BaseException:
            self._server.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def options(self) -> CacheOptions:
        """Returns the options of the view."""
        return self._plan.cache

    @property
    def building(self) -> bool:
        """Returns whether the view may have missing or surplus rows, during a build or rebuild."""
        return bool(self._answers(lambda pipeline: pipeline.exists(self._keys.building))[0])

    def get(self, *key: Json) -> dict[str, Json] | None:
        """Returns a row by the values of its key, as a document; None if there is none.

        A time may be in any equivalent form of ISO 8601.
        """
        columns = self._plan.schema.by_name
        kinds = [columns[name].kind if name in columns else None for name in self._plan.keys]
        if len(kinds) == len(key):
            key = tuple(map(_moment, kinds, key))
        return self.rows([key_text(key)])[0]

    def rows(self, keys: Sequence[str]) -> list[dict[str, Json] | None]:
        """Returns rows by the texts of their keys, as lookups and leaderboards name them."""
        if not keys:
            return []

        def ask(pipeline: redis.client.Pipeline) -> None:
            names = [self._keys.rows + key for key in keys]
            if self.options.layout == CacheLayout.DOCUMENT:
                pipeline.mget(names)
                return
            for name in names:
                pipeline.hgetall(name)

        answers = self._answers(ask)
        if self.options.layout == CacheLayout.DOCUMENT:
            return [None if v is None else self._form.of_document(v) for v in answers[0]]
        return [self._form.of_hash(v) if v else None for v in answers]

    def lookup(self, name: str, **values: Json) -> list[str]:
        """Returns the keys of the rows in a lookup, unordered."""
        (members,) = self._answers(
            lambda pipeline: pipeline.smembers(
                self._named("lookup", self.options.lookups, name, values)
            )
        )
        return sorted(member.decode() for member in members)

    def top(
        self, name: str, *, limit: int = LIMIT, lowest: bool = False, **values: Json
    ) -> list[Rank]:
        """Returns the first ranks of a leaderboard, the highest score first.

        Args:
            name: Name of the leaderboard.
            limit: Maximum number of ranks.
            lowest: Whether the lowest score comes first.
            values: Values of the columns in its pattern.
        """
        (members,) = self._answers(
            lambda pipeline: pipeline.zrange(
                self._named("leaderboard", self.options.leaderboards, name, values),
                *(0, limit - 1),
                desc=not lowest,
                withscores=True,
            )
        )
        return [Rank(member.decode(), Decimal(repr(float(score)))) for member, score in members]

    def count(self, name: str, **values: Json) -> Count:
        """Returns a counter; zero if no row counts in it."""
        ((rows, total),) = self._answers(
            lambda pipeline: pipeline.hmget(
                self._named("counter", self.options.counters, name, values), ["rows", "sum"]
            )
        )
        patterns = self.options.counters
        column = patterns[self._pattern(patterns, name)]
        if column == ROWS:
            return Count(int(rows or 0))
        scale = self._plan.schema.by_name[column].scale or 0
        return Count(int(rows or 0), Decimal(int(total or 0)).scaleb(-scale))

    def names(self, kind: str) -> list[str]:
        """Returns the names of all non-empty `lookup`s, `counter`s or `leaderboard`s."""
        self._answers(lambda _: None)
        begin = self._keys.beside(kind)
        with translated_errors():
            return sorted(
                key.decode().removeprefix(begin)
                for keys in self._server.scan(begin, _COUNT)
                for key in keys
            )

    def close(self) -> None:
        """Closes the connections."""
        self._server.close()

    def _answers(self, ask: Callable[[redis.client.Pipeline], object]) -> list[Any]:
        """Runs commands on the version that is active at that moment."""
        while True:
            with translated_errors(), self._server.client.pipeline(transaction=True) as pipeline:
                pipeline.hget(self._keys.current, self._view)
                ask(pipeline)
                place, *answers = pipeline.execute()
            if place == self._place:
                return answers
            self._lay_out()  # a cutover happened in between, which is rare

    def _lay_out(self) -> None:
        self._plan = self._laid_out()
        self._form = CacheForm(self._plan)
        self._keys = self._server.keys(self._plan)

    def _laid_out(self) -> ViewPlan:
        with translated_errors():
            current: Any = self._server.client.hget(f"{self._server.prefix}_current", self._view)
            self._place: bytes | None = current
            place = self._view if current is None else current.decode()
            plan = ViewPlan(place, "", "", _schema({}, ()), (), frozenset({Store.CACHE}))
            text: Any = self._server.client.get(self._server.keys(plan).form)
        if text is None:
            raise CacheUnknownError(
                f"the cache has no view {self._view[:80]}",
                hint="headwater view list shows the views and their stores",
            )
        form = orjson.loads(text)
        options = form["options"]
        options.pop("ttl_ms")
        schema = _schema(form["columns"], form["keys"])
        return ViewPlan(
            place,
            "",
            "",
            schema,
            tuple(form["keys"]),
            frozenset({Store.CACHE}),
            cache=CacheOptions(**options),
        )

    def _named(
        self,
        kind: str,
        patterns: Sequence[str] | Mapping[str, str],
        name: str,
        values: Mapping[str, Json],
    ) -> str:
        pattern = NameTemplate.parse(self._pattern(patterns, name)) if patterns else None
        if pattern is None:
            raise CacheUnknownError(f"view {self._view} has no {kind} in the cache")
        expanded_name = expanded(pattern, values) if values else name
        if expanded_name is None:
            raise CacheUnknownError(
                f"view {self._view}: a value is missing", detail=", ".join(pattern.columns)
            )
        return self._keys.beside(kind) + expanded_name

    def _pattern(self, patterns: Sequence[str] | Mapping[str, str], name: str) -> str:
        """Returns the pattern that a name is, or was made from."""
        for text in patterns:
            if text == name or NameTemplate.parse(text).fits(name):
                return text
        raise CacheUnknownError(
            f"view {self._view} has no structure of that name in the cache",
            hint="names: " + (", ".join(patterns) or "none"),
        )


def _moment(kind: ColumnKind | None, part: Json) -> Json:
    """Converts a time to the form of keys; other texts stay unchanged."""
    if kind not in {ColumnKind.TIMESTAMP, ColumnKind.TIMESTAMPTZ} or not isinstance(part, str):
        return part
    try:
        moment = datetime.fromisoformat(part)
    except ValueError:
        return part
    if kind == ColumnKind.TIMESTAMPTZ:
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return word_of(kind)(moment)


def _schema(columns: Mapping[str, tuple[str, int | None]], keys: Sequence[str]) -> TableSchema:
    described = tuple(
        Column(name, ColumnKind(kind), kind, None, scale) for name, (kind, scale) in columns.items()
    )
    return TableSchema(TableName("", ""), described, tuple(k for k in keys if k in columns))
