"""A view with alerts, the receiver of their messages, and one evaluation of them."""

from __future__ import annotations

import json
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.postgres import own_schema
from projections.alerting.channels import ChannelSender
from projections.alerting.dispatcher import MessageDispatcher
from projections.alerting.signature import verify
from projections.alerting.watcher import AlertSpec, AlertWatcher
from projections.definition.alert import Alert, Webhook
from projections.publishing.published_versions import Published

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


SOURCE, SECRET = "shop", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


AT_ONCE = timedelta(0)


Connection = psycopg.Connection[Any]


class Receiver(ThreadingHTTPServer):
    """What a user runs: it takes messages, once each, if it is well."""

    def __init__(self) -> None:
        self.taken: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.status = 204
        super().__init__(("127.0.0.1", 0), _Receiving)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/alerts"

    def told(self) -> list[tuple[str, str]]:
        return [(each["event"], each["key"]["id"]) for each in self.taken]


class _Receiving(BaseHTTPRequestHandler):
    def do_POST(self) -> None:  # the library's name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        receiver: Any = self.server
        message_id = verify(dict(self.headers), body, SECRET)
        receiver.asked.append(message_id)
        assert message_id == self.headers["Idempotency-Key"]
        if receiver.status == 204:
            receiver.taken.append(json.loads(body))
        self.send_response(receiver.status)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def alert_receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


COLUMNS = {"id": pa.int64(), "amount": pa.int64(), "due_at": pa.timestamp("us", "UTC")}


class View:
    """A view's table, published at one boundary after the other."""

    def __init__(self, tables: Path) -> None:
        self.tables = tables
        self.more: dict[str, pa.DataType] = {}
        self._lsn = 0

    def publish(self, *rows: Mapping[str, Any]) -> None:
        """Publishes the view with these rows and no others."""
        schema = pa.schema(list((COLUMNS | self.more).items()))
        made = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
        place = str(self.tables / "payments")
        write_deltalake(place, made, mode="overwrite")
        self._lsn += 16
        version = DeltaTable(place).version()
        Published(self.tables, SOURCE).publish(1, self._lsn, {"payments": version})


@pytest.fixture
def alert_view(tmp_path: Path) -> View:
    return View(tmp_path / "tables")


@pytest.fixture
def alert_connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as found:
        own_schema.ensure(found)
        yield found


@pytest.fixture
def alert_spec(alert_view: View, database: str, alert_receiver: Receiver) -> AlertSpec:
    large = Alert(
        "large",
        "payments",
        "amount > 100",
        AT_ONCE,
        AT_ONCE,
        (Webhook(alert_receiver.url, "fraud"),),
    )
    secrets = {"fraud": SECRET}
    keys = {"payments": ("id",)}
    tables = alert_view.tables
    return AlertSpec(SOURCE, database, tables, "127.0.0.1:1", (large,), lambda: keys, secrets)


def of(spec: AlertSpec, **said: Any) -> AlertSpec:
    """The same, with one alert that is otherwise."""
    return replace(spec, alerts=(replace(spec.alerts[0], **said),))


def looked(spec: AlertSpec, connection: Connection) -> None:
    """One look by a process that knows nothing but what was noted."""
    AlertWatcher(spec, threading.Event()).evaluate(connection)


@contextmanager
def messenger(spec: AlertSpec) -> Iterator[tuple[MessageDispatcher, ChannelSender]]:
    with (
        closing(ChannelSender(spec.bootstrap, spec.secrets)) as post,
        closing(MessageDispatcher(spec.source, spec.alerts, post, threading.Event())) as found,
    ):
        yield found, post


def brought(spec: AlertSpec, connection: Connection) -> None:
    with messenger(spec) as (messages, _):
        while messages.dispatch(connection) or messages.busy:
            pass
