"""The cache sink: Valkey or Redis, one JSON string per row."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import redis

from projections.change import Applied, Refused, completed_version, may_complete
from projections.documents import DocumentForm
from projections.errors import (
    NoStoredRowError,
    SinkRefusedError,
    SinkUnavailableError,
    UnholdableValueError,
)
from projections.plan import VERSION_COLUMN

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cdc.values import Json
    from projections.change import RowChange
    from projections.plan import ViewPlan

BATCH_CHANGES: Final = 500
"""Changes per script call: a call blocks the server, about 1 ms for this many."""

PIPELINE_CALLS: Final = 8
"""Script calls sent before their answers are read; bounds what waits in the server's buffer."""

READ_KEYS: Final = 2000
_TIMEOUT_S: Final = 15.0
_DIGITS: Final = 19  # of the greatest 63-bit version
_PASSING: Final = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.exceptions.BusyLoadingError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ReadOnlyError,
)
_PREFIX: Final = b'{"' + VERSION_COLUMN.encode() + b'":"'

# Versions are compared as text of equal length: Lua's numbers hold no 63-bit integer. KEYS[1] is
# the hash of deletes, KEYS[2] the version below which nothing is taken any more; then one key per
# change. ARGV has four per change: version, value (empty for a delete), name in the hash of
# deletes, and the version that must be stored ("" for any). A key of another type than a row's is
# told by its number, from 1.
_SCRIPT: Final = """
local deletes, floor, done, refused = KEYS[1], redis.call('GET', KEYS[2]) or '', {0, 0, 0, 0}, {}
for i = 3, #KEYS do
  local key, a = KEYS[i], (i - 3) * 4
  local version, value, name, wanted = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local live = redis.pcall('GETRANGE', key, FIRST, LAST)
  local deleted = ''
  if live == '' then deleted = redis.call('HGET', deletes, name) or '' end
  if type(live) == 'table' then
    refused[#refused + 1] = i - 2
  elseif live >= version or deleted >= version or floor > version then
    done[3] = done[3] + 1
  elseif wanted ~= '' and wanted ~= live then
    done[4] = done[4] + 1
  elseif value == '' then
    if live ~= '' then redis.call('DEL', key) end
    redis.call('HSET', deletes, name, version)
    done[2] = done[2] + 1
  else
    redis.call('SET', key, value)
    if deleted ~= '' then redis.call('HDEL', deletes, name) end
    done[1] = done[1] + 1
  end
end
done[5] = refused
return done
""".replace("FIRST", str(len(_PREFIX))).replace("LAST", str(len(_PREFIX) + _DIGITS - 1))

# Removes those of the keys whose rows are older than ARGV[1].
_SWEEP: Final = """
local removed = 0
for _, key in ipairs(KEYS) do
  local live = redis.pcall('GETRANGE', key, FIRST, LAST)
  if type(live) == 'string' and live ~= '' and live < ARGV[1] then
    removed = removed + redis.call('DEL', key)
  end
end
return removed
""".replace("FIRST", str(len(_PREFIX))).replace("LAST", str(len(_PREFIX) + _DIGITS - 1))


class CacheSink:
    """Keeps a row as `<prefix><view>:<key>`: one JSON object whose first member is its version.

    Deletes are remembered in the hash `<prefix>_deleted:<view>`, key to version, until a newer
    row takes their place. What `sweep` was given last is in `<prefix>_floor:<view>`. Compare and
    write happen in one script on the server, so any number of writers may race. What is
    acknowledged survives a crash of the server process; with `appendfsync everysec` a power cut
    can lose the last second, which is then written again from the log only if the view is rebuilt.
    A server that evicts keys forgets rows *and* versions: it must run with
    `maxmemory-policy noeviction`.

    Args:
        url: `redis://…` or `unix://…`.
        prefix: Namespace of the project on a shared server, such as `shop:`.
    """

    def __init__(self, url: str, prefix: str = "") -> None:
        self._prefix = prefix
        self._client: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._sha: str | None = None
        self._forms: dict[str, DocumentForm] = {}

    def prepare(self, plan: ViewPlan) -> None:
        """Checks that the server answers; a view needs nothing made."""
        del plan
        with _told_apart():
            self._client.ping()

    def apply(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        """Writes changes through the guarded script; see `Sink.apply`."""
        total = Applied()
        step = BATCH_CHANGES * PIPELINE_CALLS
        name_of = self._form(plan).name_of
        kept = [change for change in changes if change.kept]
        wanted = {name_of(key) for c in kept for key in (c.key, c.base or c.key)}
        with _told_apart():
            rows = self._stored(plan, list(wanted))  # as they are before any of this is written
            for start in range(0, len(changes), step):
                total += self._write(plan, changes[start : start + step], rows)
        return total

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row; see `Sink.documents`."""
        with _told_apart():
            for keys in self._keys(plan):
                values: Any = self._client.mget(keys)
                for value in values:
                    if value is not None:
                        yield _without_version(value)

    def versions(self, plan: ViewPlan, changes: Sequence[RowChange]) -> list[int]:
        """Looks the keys up; see `Sink.versions`."""
        with _told_apart():
            floor = int(self._client.get(self._floor_key(plan)) or 1) - 1
            stored = self._stored(plan, [self._form(plan).name(change) for change in changes])
        names = [self._form(plan).name(change) for change in changes]
        return [max(floor, int(stored[name].version if name in stored else 0)) for name in names]

    def sweep(self, plan: ViewPlan, below_version: int) -> int:
        """Notes the version, then removes keys by a guarded script; see `Sink.sweep`."""
        below = _digits(below_version)
        removed = 0
        with _told_apart():
            known: Any = self._client.get(self._floor_key(plan)) or b""
            if known.decode() < below:
                self._client.set(self._floor_key(plan), below)
            for keys in self._keys(plan):
                removed += int(self._client.eval(_SWEEP, len(keys), *keys, below))
            deletes = f"{self._prefix}_deleted:{plan.name}"
            found: Any = self._client.hscan_iter(deletes, count=READ_KEYS)
            old = [name for name, version in found if version.decode() < below]
            for start in range(0, len(old), READ_KEYS):
                self._client.hdel(deletes, *old[start : start + READ_KEYS])
        return removed

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _keys(self, plan: ViewPlan) -> Iterator[list[bytes]]:
        """All keys of the view's rows, in lists of a bounded length."""
        pattern = f"{_glob(self._prefix + plan.name)}:*"
        # a scan may show a key twice while the server rehashes
        keys = list(set(self._client.scan_iter(match=pattern, count=READ_KEYS)))
        for start in range(0, len(keys), READ_KEYS):
            yield keys[start : start + READ_KEYS]

    def _write(
        self, plan: ViewPlan, changes: Sequence[RowChange], rows: Mapping[str, _Stored]
    ) -> Applied:
        form = self._form(plan)
        written: list[tuple[RowChange, str, _Written]] = []
        refused: list[Refused] = []
        for change in changes:
            try:
                name = form.name(change)
                base = name if change.base is None else form.name_of(change.base)
                each = _written(form, change, rows.get(name), rows.get(base))
            except (UnholdableValueError, NoStoredRowError) as error:
                refused.append(Refused(change, error))
            else:
                written.append((change, name, each))
        answers = self._send(plan, written)
        foreign = [
            start + number - 1
            for start, answer in zip(range(0, len(written), BATCH_CHANGES), answers, strict=True)
            for number in answer[4]
        ]
        refused += [Refused(written[place][0], _foreign(plan)) for place in foreign]
        upserted, deleted, stale, raced = (sum(a[part] for a in answers) for part in range(4))
        if raced:
            raise SinkUnavailableError(
                f"view {plan.name}: another writer changed rows meanwhile", detail=f"{raced} rows"
            )
        size = sum(len(each.value) for _, _, each in written)
        return Applied(upserted, deleted, stale, tuple(refused), size)

    def _send(
        self, plan: ViewPlan, written: Sequence[tuple[RowChange, str, _Written]]
    ) -> list[list[Any]]:
        """Calls the script for changes; returns its answers, one for each `BATCH_CHANGES`."""
        with self._client.pipeline(transaction=False) as pipeline:
            for start in range(0, len(written), BATCH_CHANGES):
                keys = [f"{self._prefix}_deleted:{plan.name}", self._floor_key(plan)]
                arguments: list[str | bytes] = []
                for _, name, each in written[start : start + BATCH_CHANGES]:
                    keys.append(f"{self._prefix}{plan.name}:{name}")
                    arguments += (each.version, each.value, name, each.wanted)
                pipeline.evalsha(self._script(), len(keys), *keys, *arguments)
            return self._execute(pipeline)

    def _floor_key(self, plan: ViewPlan) -> str:
        return f"{self._prefix}_floor:{plan.name}"

    def _script(self) -> str:
        if self._sha is None:
            self._sha = str(self._client.script_load(_SCRIPT))
        return self._sha

    def _execute(self, pipeline: Any) -> list[list[Any]]:
        try:
            answers: list[list[Any]] = pipeline.execute()
        except redis.exceptions.NoScriptError:
            self._sha = None  # the server was restarted; the batch is given again
            raise SinkUnavailableError("the cache was restarted") from None
        return answers

    def _form(self, plan: ViewPlan) -> DocumentForm:
        form = self._forms.get(plan.name)
        if form is None or form.plan != plan:
            form = self._forms[plan.name] = DocumentForm(plan)
        return form

    def _stored(self, plan: ViewPlan, names: Sequence[str]) -> dict[str, _Stored]:
        """Version and document that rows have now, or version of a delete, by name."""
        if not names:
            return {}
        rows: Any = self._client.mget([f"{self._prefix}{plan.name}:{name}" for name in names])
        deletes: Any = self._client.hmget(f"{self._prefix}_deleted:{plan.name}", list(names))
        found: dict[str, _Stored] = {}
        for name, row, deleted in zip(names, rows, deletes, strict=True):
            if row is not None:
                version = row[len(_PREFIX) : len(_PREFIX) + _DIGITS].decode()
                found[name] = _Stored(version, _without_version(row))
            elif deleted is not None:
                found[name] = _Stored(deleted.decode(), None)
        return found


class _Stored(NamedTuple):
    """What a key has: version and document of a row, or version of a delete."""

    version: str
    fields: dict[str, Json] | None


class _Written(NamedTuple):
    """What the script is told of a change."""

    version: str
    value: bytes
    wanted: str


def _written(
    form: DocumentForm,
    change: RowChange,
    stored: _Stored | None,
    base: _Stored | None,
) -> _Written:
    """Returns what the script is told, with unchanged values from the row `base`."""
    version = _digits(change.version)
    if change.row is None:
        return _Written(version, b"", "")
    fields = form.fields(change.row)
    wanted = ""
    if change.kept and (stored is None or stored.version < version):
        row = None if base is None else base.fields
        since = form.plan.kept_since
        if base is None or row is None or not may_complete(change, int(base.version), since):
            raise form.missing_values(change)
        fields |= {name: row[name] for name in change.kept}
        wanted = "" if change.base is not None else base.version
        version = _digits(completed_version(change, int(base.version)))
    body = orjson.dumps(fields)
    value = _PREFIX + version.encode() + (b'",' if fields else b'"') + body[1:]
    return _Written(version, value, wanted)


def _digits(version: int) -> str:
    return f"{version:0{_DIGITS}d}"


def _foreign(plan: ViewPlan) -> SinkRefusedError:
    return SinkRefusedError(
        f"view {plan.name}: the cache has something else under a row's key",
        detail="WRONGTYPE",
        hint="remove what is not Headwater's, then headwater quarantine retry",
    )


@contextmanager
def _told_apart() -> Iterator[None]:
    """Turns the client's errors into those of sinks; never shows a value."""
    try:
        yield
    except redis.exceptions.AuthenticationError as error:
        raise SinkRefusedError("the cache refuses the password", detail=_kind(error)) from None
    except _PASSING as error:
        raise SinkUnavailableError("the cache cannot be written", detail=_kind(error)) from None
    except redis.RedisError as error:
        # the first word is the server's code, such as WRONGTYPE; the rest may show a value
        answer = str(error).split(" ", 1)[0][:40]
        raise SinkRefusedError("the cache refuses a command", detail=answer) from None


def _kind(error: Exception) -> str:
    return type(error).__name__


def _without_version(value: bytes) -> dict[str, Json]:
    fields: dict[str, Json] = orjson.loads(value)
    del fields[VERSION_COLUMN]
    return fields


def _glob(text: str) -> str:
    return "".join("\\" + char if char in "*?[]\\^-" else char for char in text)
