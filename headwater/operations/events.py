"""What the commands under `headwater events` do, apart from printing."""

from __future__ import annotations

import importlib
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from eventstore.deciding.decider import Decider
from eventstore.errors import AuditError, EventStoreError, UndeclaredError
from eventstore.log import LogPart
from eventstore.model.callables import is_async
from eventstore.model.names import check_tenant
from eventstore.postgres import schema
from eventstore.postgres.errors import translated
from eventstore.postgres.keyring import PostgresKeyRing
from eventstore.postgres.log import PostgresEventLog
from eventstore.privacy.master_key import new_master_keys, read_master_keys
from eventstore.reactor import Reactor
from eventstore.serialization.registry import EventData
from eventstore.store import EventStore
from eventstore.subscription import AsyncSubscription, Subscription
from eventstore.upkeep.audit import SealedHead
from foundation.atomic_file import write_atomically
from headwater.errors import UsageError
from headwater.platform.database import Database, find_database
from headwater.project import optional

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from eventstore.model.event import StoredEvent
    from eventstore.model.query import Query
    from eventstore.serialization.codec import Codec
    from headwater.project.settings import EventStoreSettings

SEALED: Final = "[sealed]"
"""Shown in the place of what only a master key opens."""

_HEAD: Final = "SELECT eventstore.head(), eventstore.high_water_mark()"
_WRITERS: Final = (
    "SELECT pid, gid, role, application_name, state, started_at,"
    " round(extract(epoch FROM clock_timestamp() - started_at))::bigint AS age_s, command"
    " FROM eventstore.writers_under_way"
)


@dataclass(frozen=True, slots=True)
class LogStatus:
    """How the log stands.

    Attributes:
        head: The last global position that was drawn.
        mark: The log is complete up to here.
        writers: Who holds the mark back, the longest first.
    """

    head: int
    mark: int
    writers: tuple[dict[str, Any], ...]

    @property
    def distance(self) -> int:
        """Positions between the two."""
        return self.head - self.mark


def find_store(
    dsn: str | None,
    *,
    config: Path | None = None,
    home: Path | None = None,
    profile: str | None = None,
) -> Database:
    """Finds a database with the event store that this code works with; see `find_database`.

    Raises:
        SchemaMissingError: The database has none, or one of another version.
    """
    found = find_database(dsn, config=config, home=home, profile=profile)
    schema.check(found.dsn)
    return found


@contextmanager
def open_store(database: Database, tenant: str | None = None) -> Iterator[EventStore]:
    """Opens the event store with what the project declares.

    Args:
        database: Where it is.
        tenant: Whose; as the settings say if left out.
    """
    tenant = tenant_of(database, tenant)
    load_modules(database)
    ring = _ring(database)
    try:
        with EventStore(PostgresEventLog(database.dsn), tenant=tenant, keyring=ring) as store:
            yield store
    finally:
        if ring is not None:
            ring.close()


def tenant_of(database: Database, tenant: str | None) -> str:
    """Returns the tenant that a command acts for.

    Raises:
        NameRefusedError: This is no name of a tenant.
    """
    return check_tenant(database.settings.tenant if tenant is None else tenant)


def load_modules(database: Database) -> list[Any]:
    """Imports the modules that declare event types and deciders; see `modules_of`."""
    return modules_of(database.settings, database.root)


def modules_of(settings: EventStoreSettings, root: Path) -> list[Any]:
    """Imports the modules that a project names.

    Args:
        settings: Section `[eventstore]`.
        root: Folder that the names start from.

    Raises:
        UsageError: One of them cannot be imported.
    """
    folder = str(root)
    if settings.modules and folder not in sys.path:
        sys.path.insert(0, folder)
    return [_module(name) for name in settings.modules]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except EventStoreError:
        raise  # it says itself what is declared wrongly
    except ModuleNotFoundError as error:
        if optional.missing(error) is not None:
            raise
        raise UsageError(
            f"eventstore.modules: {name} cannot be imported",
            detail=f"module {error.name} does not exist",
            hint="modules are imported from the settings file's folder",
        ) from error
    except Exception as error:
        raise UsageError(
            f"eventstore.modules: {name} cannot be imported", detail=type(error).__name__
        ) from error


def decider_of(database: Database, category: str) -> Decider[Any, Any, Any]:
    """Returns the decider that the project declares for a category.

    Raises:
        UndeclaredError: There is none, or more than one.
    """
    values = [value for module in load_modules(database) for value in vars(module).values()]
    candidates = [getattr(value, "decider", value) for value in values]
    found = {
        id(decider): decider
        for decider in candidates
        if isinstance(decider, Decider) and decider.category == category
    }
    if len(found) != 1:
        raise UndeclaredError(
            f"{len(found) or 'no'} deciders are declared for category {category}",
            hint="add its module to [eventstore] modules",
        )
    return next(iter(found.values()))


def subscription_of(database: Database, name: str) -> Subscription:
    """Returns the subscription, or that of the projection, that the project declares by a name.

    Raises:
        UndeclaredError: There is none, or more than one.
    """
    values = [value for module in load_modules(database) for value in vars(module).values()]
    found = {id(value): value for value in values if _named(value) == name}
    if len(found) != 1:
        raise UndeclaredError(
            f"{len(found) or 'no'} subscriptions or projections are declared as {name}",
            hint="add the module with the object to [eventstore] modules",
        )
    (value,) = found.values()
    if isinstance(value, Subscription):
        return value
    return AsyncSubscription.of(value) if is_async(value.apply) else Subscription.of(value)


def reactor_of(database: Database, name: str) -> Reactor:
    """Returns the reactor that the project declares by a name; see `reactor_in`."""
    return reactor_in(database.settings, database.root, name)


def reactor_in(settings: EventStoreSettings, root: Path, name: str) -> Reactor:
    """Returns the reactor that the modules of a project declare by a name; see `modules_of`.

    Raises:
        UndeclaredError: There is none, or more than one.
    """
    values = [value for module in modules_of(settings, root) for value in vars(module).values()]
    found = {
        id(value): value for value in values if isinstance(value, Reactor) and value.name == name
    }
    if len(found) != 1:
        raise UndeclaredError(
            f"{len(found) or 'no'} reactors are declared as {name}",
            hint="name the module that has it in [eventstore] modules",
        )
    return next(iter(found.values()))


def _named(value: Any) -> str | None:
    """The name of a subscription or of a projection; None if it is neither."""
    projection = not isinstance(value, type) and callable(getattr(value, "apply", None))
    if isinstance(value, Subscription) or (projection and hasattr(value, "query")):
        name: str = value.name
        return name
    return None


@contextmanager
def open_ring(database: Database) -> Iterator[PostgresKeyRing]:
    """Opens the keys of subjects; to destroy one, no master key is needed."""
    ring = _ring(database) or PostgresKeyRing(database.keys_dsn, new_master_keys("unused"))
    try:
        yield ring
    finally:
        ring.close()


def _ring(database: Database) -> PostgresKeyRing | None:
    path = database.settings.master_key_file
    if path is None:
        return None
    return PostgresKeyRing(database.keys_dsn, read_master_keys(database.root / path))


def event_of(store: EventStore, type_: str, text: str) -> EventData:
    """Returns the event that a command line describes, in the declared version of its type.

    Raises:
        UsageError: The text is no JSON object, or says one thing twice.
    """
    try:
        data = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, json.JSONDecodeError | _JsonError) else "too deep"
        raise UsageError("the payload is not JSON", detail=reason) from None
    if not isinstance(data, dict):
        raise UsageError("the payload is not a JSON object", detail=type(data).__name__)
    version = store.codec.types.named(type_).version if type_ in store.codec.types else 1
    return EventData(type_, data, version)


class _JsonError(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _JsonError("a key occurs twice")
    return found


def _no_number(name: str) -> Any:
    raise _JsonError(f"{name} is not a JSON number")


def shown(stored: StoredEvent, codec: Codec) -> dict[str, Any]:
    """Returns an event for printing.

    Its data is as this program reads it, if its type is declared; otherwise as it is stored.
    Personal values that cannot be opened here are `SEALED`.
    """
    row = {
        **stored._asdict(),
        "event_id": str(stored.event_id),
        "tags": list(stored.tags or ()),
        "metadata": None if stored.metadata is None else json.loads(stored.metadata),
        "occurred_at": stored.occurred_at.isoformat(),
        "recorded_at": stored.recorded_at.isoformat(),
    }
    row["data"] = row.pop("data")  # at the end, where its length does no harm
    try:
        readable = stored.type in codec.types and not _needs_ring(stored, codec)
        row["data"] = codec.payload(stored) if readable else _as_stored(stored)
    except EventStoreError as error:
        row |= {"data": _as_stored(stored), "unreadable": error.code}
    return row


def _needs_ring(stored: StoredEvent, codec: Codec) -> bool:
    sealed = codec.types.sealed_fields(stored.type, stored.schema_version)
    return bool(sealed) and codec.keyring is None


def _as_stored(stored: StoredEvent) -> Any:
    return json.loads(stored.data, object_hook=_masked)


def _masked(value: dict[str, Any]) -> Any:
    return SEALED if "$sealed" in value else value


def last_positions(store: EventStore, query: Query, count: int) -> int:
    """Returns the global position after which the last `count` events of a query are."""
    part = LogPart(query=query, backwards=True, limit=count + 1)
    positions = [stored.global_position for stored in store.log.read_log(store.tenant, part)]
    return positions[count] if len(positions) > count else 0


def log_status(database: Database) -> LogStatus:
    """Returns how the log stands; changes nothing."""
    try:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            # holds for transactions; outside of them that of the role or database would
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            with connection.transaction():
                row = connection.execute(_HEAD).fetchone() or (0, 0)
            # in binary form, because psycopg reads no other DateStyle than ISO
            cursor = connection.cursor(binary=True, row_factory=psycopg.rows.dict_row)
            return LogStatus(row[0], row[1], tuple(cursor.execute(_WRITERS).fetchall()))
    except psycopg.Error as error:
        raise translated(error) from error


def read_head(path: Path) -> SealedHead:
    """Reads a head that was kept outside of the database.

    Raises:
        UsageError: There is no such file.
        AuditError: It holds no head.
    """
    try:
        return SealedHead.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = "headwater events seal --head FILE writes it"
        raise UsageError(f"{path} cannot be read", detail=str(error), hint=hint) from None


def keep_head(path: Path, head: SealedHead) -> None:
    """Writes a head into a file, unless the one in it contradicts it.

    Raises:
        AuditError: The head in the file is further, or another one at the same place: the log was
            changed since. The file is left as it is.
    """
    if path.exists():
        kept = read_head(path)
        further = kept.block > head.block or kept.compactions > head.compactions
        if further or (kept.block == head.block and kept.digest != head.digest):
            raise AuditError(
                "the log does not continue from the stored head",
                detail=f"stored: block {kept.block}; now: block {head.block}",
                hint=f"headwater events verify --head {path}",
            )
    write_atomically(path, f"{head}\n", mode=0o600)


def read_texts(path: Path) -> list[str]:
    """Reads texts that are to be looked for, one a line.

    Raises:
        UsageError: The file cannot be read, or has none.
    """
    try:
        texts = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", detail=type(error).__name__) from None
    if not texts:
        raise UsageError(f"{path} has no text", hint="write one text per line")
    return texts
