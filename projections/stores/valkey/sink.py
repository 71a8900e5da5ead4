"""The cache sink: Valkey or Redis, one JSON string or one hash per row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from projections.changes.documents import DocumentForm
from projections.changes.row_batch import parts
from projections.changes.row_change import Applied, Refused, completed_version, may_complete
from projections.changes.sink import StoredKey
from projections.definition.cache_options import CacheLayout
from projections.definition.columns import VERSION_COLUMN
from projections.errors import (
    NoStoredRowError,
    SinkRefusedError,
    SinkUnavailableError,
    UnholdableValueError,
)
from projections.stores.valkey.client import BESIDE, CacheServer, Keys, translated_errors
from projections.stores.valkey.row import DIGITS, PREFIX, CacheForm, form_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cdc.values import Json
    from projections.changes.row_batch import RowPart
    from projections.changes.row_change import ReadSpan, RowChange
    from projections.planning.view_plan import ViewPlan
    from projections.stores.valkey.client import Calls

CALL_CHANGES: Final = 500
"""Changes per script call: a call blocks the server, for about 1 ms at this number."""

CALL_SIZE: Final = 512 * 1024
"""Characters per script call, unless one change has more: longer calls block the server longer."""

READ_KEYS: Final = 2000
_ROW_SIZE: Final = 64  # approximate size of a change without its value


class CacheSink:
    """Writes each row to `<prefix><view>:<key>`, in the layout of the view's `CacheOptions`.

    A document is one JSON object whose first member is its version; a hash has a field for each
    column that is not NULL, and its version in `_version`. Deletes are recorded in the hash
    `<prefix>_deleted:<view>`, key to version, until a newer row replaces them; so are rows with a
    time to live, because the server does not report their expiry. `<prefix>_floor:<view>` stores
    the version of the last sweep.

    Beside rows are the view's lookups (sets of keys), counters (hashes of `rows` and `sum`) and
    leaderboards (sorted sets of keys): `<prefix>_lookup:<view>:<name>` and so on.
    `<prefix>_links:<view>` records each row's entries, so that they are removed exactly when the
    row changes.

    One script on the server compares and writes, for a row and its entries at once, so any number
    of writers may race, and no reader sees one without the other. An acknowledged write survives a
    crash of the server process; with `appendfsync everysec` a power cut can lose the last second.
    `CacheEpoch` detects that, and the views are read again. A server that evicts keys loses rows
    *and* versions: it must run with `maxmemory-policy noeviction`.

    Args:
        url: `redis://…` or `unix://…`; one server, or the primary of several, not a cluster.
        prefix: Namespace of the project on a shared server, such as `shop:`.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        self._server = CacheServer(url, prefix)
        self._client = self._server.client
        self._forms: dict[str, tuple[DocumentForm, CacheForm]] = {}

    def prepare(self, plan: ViewPlan) -> None:
        """Stores the options of the view, and marks a new view as being built."""
        keys, form = self._server.keys(plan), form_text(plan)
        with translated_errors():
            known: Any = self._client.get(keys.form)
            if known is None:
                self._client.set(keys.building, "new")
            if known != form.encode():
                self._client.set(keys.form, form)

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes through the guarded script; see `Sink.apply`."""
        form, cached = self._form(plan)
        partial = [change for change in changes if change.unchanged_columns]
        wanted = {form.name_of(key) for c in partial for key in (c.key, c.base or c.key)}
        with translated_errors():
            rows = self._stored(plan, list(wanted))  # as stored before any of this is written
            with self._server.calls(plan, "write") as calls:
                batch = _Batch(plan, form, cached, calls)
                for change in changes:
                    batch.add(change, rows)
                batch.finish()
        if batch.raced:
            raise SinkUnavailableError(
                f"view {plan.name}: another writer changed rows meanwhile",
                detail=f"{batch.raced} rows",
            )
        return batch.applied()

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row; see `Sink.documents`."""
        return (document for _, document in self.versioned(plan))

    def parts(self, plan: ViewPlan) -> Iterator[RowPart]:
        """Reads every live row; see `Sink.parts`."""
        return parts(plan, self.documents(plan))

    def versioned(self, plan: ViewPlan) -> Iterator[tuple[int, Mapping[str, object]]]:
        """Reads every live row with its version; see `Sink.versioned`."""
        with translated_errors():
            for keys in self._server.scan(self._server.keys(plan).rows, READ_KEYS):
                for row in self._rows(plan, keys):
                    if row is not None and row.fields is not None:
                        yield int(row.version), row.fields

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the keys up; see `Sink.versions`."""
        names = [self._form(plan)[0].name(change) for change in changes]
        with translated_errors():
            known: Any = self._client.get(self._server.keys(plan).floor)
            floor = int(known or 1) - 1
            stored = self._stored(plan, names)
        return [max(floor, int(stored[name].version if name in stored else 0)) for name in names]

    def stored(self, plan: ViewPlan, keys: Sequence[tuple[object, ...]]) -> list[StoredKey]:
        """Looks the keys up; see `Sink.stored`."""
        form, _ = self._form(plan)
        names = [form.name_of(key) for key in keys]
        stored: dict[str, _Stored] = {}
        with translated_errors():
            known: Any = self._client.get(self._server.keys(plan).floor)
            floor = int(known or 1) - 1
            for start in range(0, len(names), READ_KEYS):
                stored |= self._stored(plan, names[start : start + READ_KEYS])
        holdings = (stored.get(name, _NOTHING) for name in names)
        return [
            StoredKey(max(floor, int(version)), () if fields is None else (fields,))
            for version, fields in holdings
        ]

    def sweep(
        self,
        plan: ViewPlan,
        below_version: int,
        reads: Sequence[ReadSpan] = (),  # noqa: ARG002  # a history's
    ) -> int:
        """Stores the version, then removes keys by the guarded script; see `Sink.sweep`."""
        below, keys = _digits(below_version), self._server.keys(plan)
        removed = 0
        with translated_errors():
            known: Any = self._client.get(keys.floor) or b""
            if known.decode() < below:
                self._client.set(keys.floor, below)
            for keys_read in self._server.scan(keys.rows, READ_KEYS):
                names = [key[len(keys.rows.encode()) :] for key in keys_read]
                removed += self._server.run(plan, "sweep", below, *names)
            self._sweep_links(plan, below)
            deleted: Any = self._client.hscan_iter(keys.deletes, count=READ_KEYS)
            old = [name for name, version in deleted if version.decode() < below]
            for start in range(0, len(old), READ_KEYS):
                self._client.hdel(keys.deletes, *old[start : start + READ_KEYS])
        return removed

    def drop_beside(self, plan: ViewPlan) -> None:
        """Removes all lookups, counters and leaderboards that a view no longer has.

        Raises:
            SinkError: The cache refuses or cannot be reached; call again.
        """
        keys = self._server.keys(plan)
        with translated_errors():
            for kind in BESIDE:
                for keys_read in self._server.scan(keys.beside(kind), READ_KEYS):
                    self._client.unlink(*keys_read)
            self._client.unlink(keys.links)

    def activate(self, plan: ViewPlan) -> None:
        """Makes this version the active one for readers, in one step.

        Raises:
            SinkError: The store refuses or cannot be reached.
        """
        with translated_errors():
            self._client.hset(self._server.keys(plan).current, plan.view, plan.name)

    def is_active(self, plan: ViewPlan) -> bool:
        """Returns whether this version is active; without a record, the first one is."""
        with translated_errors():
            active: Any = self._client.hget(self._server.keys(plan).current, plan.view)
        return bool((plan.view if active is None else active.decode()) == plan.name)

    def deactivate(self, view: str) -> None:
        """Forgets the active version: readers then see the first one, which is or will be empty.

        Raises:
            SinkError: The store refuses or cannot be reached.
        """
        with translated_errors():
            self._client.hdel(Keys(self._server.prefix, view).current, view)

    def drop(self, plan: ViewPlan) -> None:
        """Removes all data of an inactive version."""
        keys = self._server.keys(plan)
        self.drop_beside(plan)
        with translated_errors():
            for keys_read in self._server.scan(keys.rows, READ_KEYS):
                self._client.unlink(*keys_read)
            self._client.unlink(keys.deletes, keys.floor, keys.links, keys.form, keys.building)

    def close(self) -> None:
        """Closes the connections."""
        self._server.close()

    def _sweep_links(self, plan: ViewPlan, below: str) -> None:
        """Removes the entries of rows that expired before the sweep."""
        if not plan.cache.linked:
            return
        links: Any = self._client.hscan_iter(self._server.keys(plan).links, count=READ_KEYS)
        names = [name for name, _ in links]
        for start in range(0, len(names), READ_KEYS):
            self._server.run(plan, "sweep", below, *names[start : start + READ_KEYS])

    def _form(self, plan: ViewPlan) -> tuple[DocumentForm, CacheForm]:
        form = self._forms.get(plan.name)
        if form is None or form[0].plan != plan:
            form = self._forms[plan.name] = DocumentForm(plan), CacheForm(plan)
        return form

    def _rows(self, plan: ViewPlan, keys: Sequence[bytes | str]) -> list[_Stored | None]:
        """Returns rows by key; None for a missing one, or one with another layout."""
        cached = self._form(plan)[1]
        if plan.cache.layout == CacheLayout.DOCUMENT:
            values: Any = self._client.mget(keys)
            return [None if v is None else _of_document(cached, v) for v in values]
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.hgetall(key)
            hashes = pipeline.execute(raise_on_error=False)
        return [_of_hash(cached, row) if isinstance(row, dict) else None for row in hashes]

    def _stored(self, plan: ViewPlan, names: Sequence[str]) -> dict[str, _Stored]:
        """Returns the present version and document of rows, or the version of a delete, by name."""
        if not names:
            return {}
        keys = self._server.keys(plan)
        rows = self._rows(plan, [keys.rows + name for name in names])
        deletes: Any = self._client.hmget(keys.deletes, list(names))
        stored: dict[str, _Stored] = {}
        for name, row, deleted in zip(names, rows, deletes, strict=True):
            if row is not None:
                stored[name] = row
            elif deleted is not None:
                stored[name] = _Stored(deleted.decode(), None)
        return stored


class _Stored(NamedTuple):
    """The stored state of a key: version and document of a row, or version of a delete."""

    version: str
    fields: dict[str, Json] | None


_NOTHING: Final = _Stored("0", None)


class _Batch:
    """Collects changes into calls of bounded size."""

    def __init__(self, plan: ViewPlan, form: DocumentForm, cached: CacheForm, calls: Calls) -> None:
        self.refused: list[Refused] = []
        self.raced = 0
        self._plan = plan
        self._form = form
        self._cached = cached
        self._calls = calls
        self._linked = plan.cache.linked
        self._written = [0, 0, 0]
        self._size = 0
        self._call: list[tuple[Any, ...]] = []
        self._changes: list[RowChange] = []
        self._call_size = 0
        self._sent: list[list[RowChange]] = []

    def add(self, change: RowChange, rows: Mapping[str, _Stored]) -> None:
        """Adds a change; sends a call when it is full."""
        form = self._form
        fields: dict[str, Json] | None
        try:
            name = form.name_of(change.key)
            if change.unchanged_columns:
                base = name if change.base is None else form.name_of(change.base)
                version, fields, wanted = _completed(form, change, rows.get(name), rows.get(base))
            else:
                version, wanted = f"{change.version:0{DIGITS}d}", ""
                fields = None if change.row is None else form.fields(change.row)
            value = "" if fields is None else self._cached.value(version, fields)
            links = self._cached.links(fields) if self._linked and fields is not None else ""
        except (UnholdableValueError, NoStoredRowError) as error:
            self.refused.append(Refused(change, error))
            return
        size = len(value) if isinstance(value, str) else sum(map(len, value))
        self._size += size
        self._call_size += size + len(links) + len(name) + _ROW_SIZE
        if self._linked:
            self._call.append((name, version, value, wanted, links))
        else:
            self._call.append((name, version, value, wanted) if wanted else (name, version, value))
        self._changes.append(change)
        if len(self._call) >= CALL_CHANGES or self._call_size >= CALL_SIZE:
            self._send()

    def finish(self) -> None:
        """Sends the rest, and waits for all responses."""
        if self._call:
            self._send()
        for changes, (*written, raced, refused) in zip(
            self._sent, self._calls.answers(), strict=True
        ):
            self._written = [sum(pair) for pair in zip(self._written, written, strict=True)]
            self.raced += raced
            self.refused += [
                Refused(changes[place - 1], _foreign(self._plan, why.decode()))
                for place, why in refused
            ]

    def applied(self) -> Applied:
        """Returns the result of all changes."""
        upserted, deleted, stale = self._written
        return Applied(upserted, deleted, stale, tuple(self.refused), self._size)

    def _send(self) -> None:
        self._calls.send(msgspec.msgpack.encode(self._call))
        self._sent.append(self._changes)
        self._call, self._changes, self._call_size = [], [], 0


def _completed(
    form: DocumentForm, change: RowChange, stored: _Stored | None, base: _Stored | None
) -> tuple[str, dict[str, Json], str]:
    """Returns version and fields of a change, completed from the row `base`.

    The last value is the version that must be stored; empty for any.
    """
    version, fields = _digits(change.version), form.fields(change.row or {})
    if stored is not None and stored.version >= version:
        return version, fields, ""  # the script reports it as stale
    row = None if base is None else base.fields
    since = form.plan.kept_since
    if base is None or row is None or not may_complete(change, int(base.version), since):
        raise form.missing_values(change)
    fields |= {name: row[name] for name in change.unchanged_columns}
    wanted = "" if change.base is not None else base.version
    return _digits(completed_version(change, int(base.version))), fields, wanted


def _of_document(form: CacheForm, value: bytes) -> _Stored:
    version = value[len(PREFIX) : len(PREFIX) + DIGITS]
    return _Stored(_version(version), form.of_document(value))


def _of_hash(form: CacheForm, stored: Mapping[bytes, bytes]) -> _Stored | None:
    version = stored.get(VERSION_COLUMN.encode())
    return None if version is None else _Stored(_version(version), form.of_hash(stored))


def _version(text: bytes) -> str:
    """Returns a row's version; None if another program wrote it in another form."""
    return text.decode() if text.isdigit() else _digits(0)


def _digits(version: int) -> str:
    return f"{version:0{DIGITS}d}"


def _foreign(plan: ViewPlan, why: str) -> SinkRefusedError:
    if why == "overflow":
        return SinkRefusedError(
            f"view {plan.name}: a counter would overflow", detail="a sum beyond 63 bits"
        )
    return SinkRefusedError(
        f"view {plan.name}: the cache has a foreign value under a row's key",
        detail="WRONGTYPE",
        hint="remove the foreign value, then run headwater quarantine retry",
    )
