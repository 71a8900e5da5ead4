"""Reactors on a real database, and a receiver of their effects: an HTTP server with a ledger."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from eventstore.deciding.decider import Decider
from eventstore.errors import Rejected
from eventstore.model.query import Query
from eventstore.process import Dispatch
from eventstore.reactor import HttpPost
from eventstore.serialization.registry import EventTypes
from eventstore.store import EventStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

types = EventTypes()
ORDERS = Query(category="order")


@types.event("order.placed", version=1)
class Ordered:
    order: str
    number: int


@types.event("letter.sent", version=1)
class LetterSent:
    order: str
    number: int


@dataclass(frozen=True)
class SendLetter:
    order: str
    number: int


def decide(command: SendLetter, _: int) -> LetterSent:
    if command.number < 0:
        raise NoSuchLetterError("a letter has a number from 0 on")
    return LetterSent(command.order, command.number)


class NoSuchLetterError(Rejected):
    pass


letters: Decider[Any, Any, int] = Decider(
    category="letter",
    decide=decide,
    evolve=lambda state, _: state + 1,
    initial_state=int,
    commands=(SendLetter,),
    stream_id=lambda command: command.order,
    version=1,
)


def store_on(log: Any) -> EventStore:
    return EventStore(log, types=types, deciders=[letters])


def place(store: EventStore, count: int, orders: int = 5, *, first: int = 0) -> int:
    """Appends events over some streams; returns the last global position."""
    last = 0
    for order in range(orders):
        numbers = range(first + order, first + count, orders)
        events = [Ordered(str(order), number) for number in numbers]
        if events:
            last = store.append(f"order-{order}", events).token.global_position
    return last


class Receiver:
    """Takes effects by HTTP and keeps what came under which key.

    Attributes:
        status: What it answers; `refuse` decides it by the document instead.
        came: Every key and document, in the order in which they came.
        documents_in_order: The documents alone.
        before: Is called for each request before it counts, with the number of the request.
        after: Is called for each request when it counts and is not answered yet.
    """

    def __init__(self) -> None:
        self.status = 200
        self.refuse: Callable[[dict[str, Any]], int | None] = lambda _: None
        self.before: Callable[[int], None] = lambda _: None
        self.after: Callable[[int], None] = lambda _: None
        self.came: list[tuple[str, dict[str, Any]]] = []
        self.documents_in_order: list[dict[str, Any]] = []
        self.tried = 0
        self._lock = threading.Lock()
        receiver = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(self, self.headers["Idempotency-Key"], json.loads(body))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/letters"

    def take(self, request: BaseHTTPRequestHandler, key: str, document: dict[str, Any]) -> None:
        with self._lock:
            self.tried += 1
            number = self.tried
        self.before(number)
        status = self.refuse(document) or self.status
        if status == 200:
            with self._lock:
                self.came.append((key, document))
                self.documents_in_order.append(document)
        self.after(number)
        try:
            request.send_response(status)
            request.send_header("Content-Length", "0")
            request.end_headers()
        except OSError:
            pass  # the sender was killed

    @property
    def keys(self) -> Counter[str]:
        return Counter(key for key, _ in self.came)

    def documents(self) -> dict[str, set[tuple[str, int]]]:
        """What came under each key."""
        found = defaultdict(set)
        for key, document in self.came:
            found[key].add((document["order"], document["number"]))
        return dict(found)

    def orders(self) -> dict[str, list[int]]:
        """Numbers of each stream in the order in which they came first."""
        found: dict[str, list[int]] = {}
        for _, document in list(self.came):
            numbers = found.setdefault(document["order"], [])
            if document["number"] not in numbers:
                numbers.append(document["number"])
        return found

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def posting(url: str, *, commands: bool = False) -> Callable[[Any], list[Any]]:
    """Returns what reacts by a POST, and by a command."""

    def react(recorded: Any) -> list[Any]:
        event = recorded.event
        post = HttpPost(url=url, body={"order": event.order, "number": event.number}, timeout_s=5)
        return [post, Dispatch(SendLetter(event.order, event.number))] if commands else [post]

    return react


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def orders(pg_log: Any) -> EventStore:
    """A store on a fresh database."""
    return store_on(pg_log)
