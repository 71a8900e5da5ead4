"""The cache sink: Valkey or Redis, one JSON string per row."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson
import redis

from projections.change import Applied
from projections.documents import DocumentForm
from projections.errors import SinkRefusedError, SinkUnavailableError
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
# the hash of deletes; then one key per change. ARGV has four per change: version, value (empty
# for a delete), name in the hash of deletes, and the version that must be stored ("" for any).
_SCRIPT: Final = """
local deletes, done = KEYS[1], {0, 0, 0, 0}
for i = 2, #KEYS do
  local key, a = KEYS[i], (i - 2) * 4
  local version, value, name, wanted = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local live = redis.call('GETRANGE', key, FIRST, LAST)
  local deleted = ''
  if live == '' then deleted = redis.call('HGET', deletes, name) or '' end
  if live >= version or deleted >= version then
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
return done
""".replace("FIRST", str(len(_PREFIX))).replace("LAST", str(len(_PREFIX) + _DIGITS - 1))


class CacheSink:
    """Keeps a row as `<prefix><view>:<key>`: one JSON object whose first member is its version.

    Deletes are remembered in the hash `<prefix>_deleted:<view>`, key to version, until a newer
    row takes their place. Compare and write happen in one script on the server, so any number of
    writers may race. What is acknowledged survives a crash of the server process; with
    `appendfsync everysec` a power cut can lose the last second, which is then written again from
    the log only if the view is rebuilt. A server that evicts keys forgets rows *and* versions:
    it must run with `maxmemory-policy noeviction`.

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
        with _told_apart():
            for start in range(0, len(changes), step):
                total += self._write(plan, changes[start : start + step])
        return total

    def documents(self, plan: ViewPlan) -> Iterator[Mapping[str, object]]:
        """Reads every live row; see `Sink.documents`."""
        pattern = f"{_glob(self._prefix + plan.name)}:*"
        keys: set[bytes] = set()
        with _told_apart():
            # a scan may show a key twice while the server rehashes
            for key in self._client.scan_iter(match=pattern, count=READ_KEYS):
                keys.add(key)
            waiting = list(keys)
            for start in range(0, len(waiting), READ_KEYS):
                values: Any = self._client.mget(waiting[start : start + READ_KEYS])
                for value in values:
                    if value is not None:
                        yield _without_version(value)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _write(self, plan: ViewPlan, changes: Sequence[RowChange]) -> Applied:
        form = self._form(plan)
        stored = self._stored(plan, [change for change in changes if change.kept])
        size = 0
        with self._client.pipeline(transaction=False) as pipeline:
            for start in range(0, len(changes), BATCH_CHANGES):
                keys = [f"{self._prefix}_deleted:{plan.name}"]
                arguments: list[str | bytes] = []
                for change in changes[start : start + BATCH_CHANGES]:
                    name = form.name(change)
                    version, value, wanted = _written(form, change, stored.get(name))
                    keys.append(f"{self._prefix}{plan.name}:{name}")
                    arguments += (version, value, name, wanted)
                    size += len(value)
                pipeline.evalsha(self._script(), len(keys), *keys, *arguments)
            answers = self._execute(pipeline)
        upserted, deleted, stale, raced = (sum(column) for column in zip(*answers, strict=True))
        if raced:
            raise SinkUnavailableError(
                f"view {plan.name}: another writer changed rows meanwhile", detail=f"{raced} rows"
            )
        return Applied(upserted, deleted, stale, size)

    def _script(self) -> str:
        if self._sha is None:
            self._sha = str(self._client.script_load(_SCRIPT))
        return self._sha

    def _execute(self, pipeline: Any) -> list[list[int]]:
        try:
            answers: list[list[int]] = pipeline.execute()
        except redis.exceptions.NoScriptError:
            self._sha = None  # the server was restarted; the batch is given again
            raise SinkUnavailableError("the cache was restarted") from None
        return answers

    def _form(self, plan: ViewPlan) -> DocumentForm:
        if plan.name not in self._forms:
            self._forms[plan.name] = DocumentForm(plan)
        return self._forms[plan.name]

    def _stored(
        self, plan: ViewPlan, changes: Sequence[RowChange]
    ) -> dict[str, tuple[str, dict[str, Json] | None]]:
        """Version and document that rows with unchanged values have now, or that of a delete."""
        if not changes:
            return {}
        names = [self._form(plan).name(change) for change in changes]
        rows: Any = self._client.mget([f"{self._prefix}{plan.name}:{name}" for name in names])
        deletes: Any = self._client.hmget(f"{self._prefix}_deleted:{plan.name}", names)
        found: dict[str, tuple[str, dict[str, Json] | None]] = {}
        for name, row, deleted in zip(names, rows, deletes, strict=True):
            if row is not None:
                version = row[len(_PREFIX) : len(_PREFIX) + _DIGITS].decode()
                found[name] = version, _without_version(row)
            elif deleted is not None:
                found[name] = deleted.decode(), None
        return found


def _written(
    form: DocumentForm, change: RowChange, stored: tuple[str, dict[str, Json] | None] | None
) -> tuple[str, bytes, str]:
    """What the script is told: version, value, and the version that must be stored."""
    version = f"{change.version:0{_DIGITS}d}"
    if change.row is None:
        return version, b"", ""
    fields = form.fields(change.row)
    wanted = ""
    if change.kept:
        stored_version, base = stored or ("", None)
        if version > stored_version:
            fields, wanted = form.complete(change, fields, base), stored_version
    body = orjson.dumps(fields)
    return version, _PREFIX + version.encode() + (b'",' if fields else b'"') + body[1:], wanted


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
