"""The header of positions, through servers and clients of HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from cdc.errors import TokenOutdatedError
from cdc.lsn import Lsn
from cdc.position_token import PositionToken
from headwater.reading.http_tokens import HEADER, AsgiPositions, WsgiPositions, at_least, promise
from projections.publishing.read_barrier import BehindError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EARLY, LATE = PositionToken("shop", 1, Lsn(100)), PositionToken("shop", 1, Lsn(200))
NEWER = PositionToken("shop", 2, Lsn(50))
Answer = tuple[int, dict[str, str], bytes]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def over_wsgi(handle: Callable[[], bytes], header: str | None) -> Answer:
    def app(_: Any, start: Any) -> list[bytes]:
        body = handle()
        start("200 OK", [("Content-Type", "text/plain")])
        return [body]

    with served(WsgiPositions(app)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/", headers={} if header is None else {HEADER: header})
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
    return found


@contextmanager
def served(app: Any) -> Iterator[int]:
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield server.server_port
        thread.join(10)


def over_asgi(handle: Callable[[], bytes], header: str | None) -> Answer:
    async def app(_: Any, __: Any, send: Any) -> None:
        body = handle()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def nothing() -> None:
        return None

    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    names = [] if header is None else [(HEADER.lower().encode(), header.encode())]
    asyncio.run(AsgiPositions(app)({"type": "http", "headers": names}, nothing, send))
    start, body = sent
    headers = {name.decode().title(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, body["body"]


@pytest.fixture(params=[over_wsgi, over_asgi], ids=["wsgi", "asgi"])
def ask(request: pytest.FixtureRequest) -> Callable[[Callable[[], bytes], str | None], Answer]:
    found: Callable[[Callable[[], bytes], str | None], Answer] = request.param
    return found


def told() -> bytes:
    return str(at_least()).encode()


def test_a_handler_is_told_what_it_has_to_know_of_and_the_client_keeps_it(ask: Any) -> None:
    status, headers, body = ask(told, str(EARLY))

    assert (200, str(EARLY).encode()) == (status, body)
    assert headers[HEADER] == str(EARLY)


def test_without_the_header_nothing_is_asked_for_nor_said(ask: Any) -> None:
    status, headers, body = ask(told, None)

    assert (200, b"None") == (status, body)
    assert HEADER not in headers


@pytest.mark.parametrize(
    ("asked", "written", "said"),
    [
        (None, EARLY, EARLY),
        (EARLY, LATE, LATE),
        (LATE, EARLY, LATE),
        (LATE, NEWER, NEWER),
        (PositionToken("store", 9, Lsn(900)), EARLY, EARLY),
    ],
    ids=[
        "only written",
        "written later",
        "written earlier",
        "of a newer incarnation",
        "asked for of another source",
    ],
)
def test_the_later_of_what_was_asked_for_and_written_is_sent_back(
    ask: Any, asked: PositionToken | None, written: PositionToken, said: PositionToken
) -> None:
    def handle() -> bytes:
        promise(written)
        return b""

    _, headers, _ = ask(handle, None if asked is None else str(asked))

    assert headers[HEADER] == str(said)


def test_what_is_no_token_is_a_bad_request(ask: Any) -> None:
    status, headers, body = ask(told, "hw1.4.812")

    assert (400, "HW-C081") == (status, json.loads(body)["code"])
    assert headers["Content-Type"] == "application/json"


def test_a_view_that_is_behind_is_unavailable_for_now(ask: Any) -> None:
    def handle() -> bytes:
        raise BehindError("a view did not reach the position", detail="orders in cache: batch")

    status, headers, body = ask(handle, str(EARLY))

    assert (503, "1") == (status, headers["Retry-After"])
    assert "orders in cache: batch" == json.loads(body)["detail"]


def test_an_answer_that_was_begun_is_taken_back() -> None:
    """A handler of WSGI may say its status before it reads."""

    def app(_: Any, start: Any) -> list[bytes]:
        start("200 OK", [])
        raise BehindError("a view did not reach the position")

    with served(WsgiPositions(app)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        assert 503 == connection.getresponse().status
        connection.close()


def test_a_token_from_before_a_restore_fails_the_precondition(ask: Any) -> None:
    def handle() -> bytes:
        raise TokenOutdatedError("from before", hint="take a new one")

    status, _, body = ask(handle, str(EARLY))

    assert (412, "take a new one") == (status, json.loads(body)["hint"])


def test_other_errors_of_a_handler_are_its_own() -> None:
    def handle() -> bytes:
        raise ValueError("of the application")

    with pytest.raises(ValueError, match="of the application"):
        over_asgi(handle, None)


def test_a_promise_outside_of_a_request_is_a_mistake() -> None:
    assert at_least() is None
    with pytest.raises(LookupError):
        promise(EARLY)
