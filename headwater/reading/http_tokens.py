"""Position tokens over HTTP: a header says what an answer has to know of, or what it has written.

A client that sends back the last `Headwater-Position` that it was given reads what it has written,
whichever of a service's processes answers:

    app = WsgiPositions(app)            # or AsgiPositions(app)

    def place(request):                 # in a handler that writes
        promise(views.token(store.handle(PlaceOrder(...)).token))

    def show(request):                  # in one that reads
        views["orders"].read(request.id, at_least=at_least())

What cannot be is answered by the middleware: 400 to what is no token, 412 to one of another source
or from before a restore, and 503 when a view does not come to the position in time.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.errors import TokenError, TokenMalformedError
from cdc.position_token import PositionToken
from projections.publishing.read_barrier import BehindError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

HEADER: Final = "Headwater-Position"
RETRY_AFTER_S: Final = 1
"""After which a client may ask again for what a view did not have yet."""

_ENVIRON: Final = "HTTP_" + HEADER.upper().replace("-", "_")
_NAME: Final = HEADER.lower().encode()
_JSON: Final = "application/json"


class _Exchange:
    """One request and its answer."""

    def __init__(self, at_least: PositionToken | None) -> None:
        self.at_least = at_least
        self.promised: PositionToken | None = None

    @property
    def header(self) -> str | None:
        """Returns the response header: the later one of the requested and the written position."""
        asked, promised = self.at_least, self.promised
        if promised is None or asked is None or asked.source != promised.source:
            newest = promised or asked
        else:
            newest = max(asked, promised, key=lambda token: (token.epoch, token.lsn))
        return None if newest is None else str(newest)


_exchange: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)


def at_least() -> PositionToken | None:
    """Returns the token of the request that is being answered; None if it has none."""
    exchange = _exchange.get()
    return None if exchange is None else exchange.at_least


def promise(token: PositionToken) -> None:
    """Sends a token with the answer, for the client to send with its next requests.

    Raises:
        LookupError: No request is being answered under this middleware.
    """
    exchange = _exchange.get()
    if exchange is None:
        raise LookupError(HEADER)
    exchange.promised = token


class WsgiPositions:
    """The header for an application of WSGI.

    Args:
        app: The application. Its handlers read and promise before they return.
    """

    def __init__(self, app: WSGIApplication) -> None:
        self._app = app

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a request."""
        try:
            with _answering(environ.get(_ENVIRON)) as exchange:

                def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
                    header = exchange.header
                    more = [] if header is None else [(HEADER, header)]
                    return start_response(status, [*headers, *more], *rest)

                return self._app(environ, start)
        except (TokenError, BehindError) as error:
            status, headers, body = _refusal(error)
            # its handler may have begun a response without sending anything
            start_response(f"{status.value} {status.phrase}", list(headers.items()), sys.exc_info())
            return [body]


class AsgiPositions:
    """The header for an application of ASGI.

    Args:
        app: The application. Its handlers read and promise before their answer begins.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Answers a request; what is no request of HTTP is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = next((value for name, value in scope["headers"] if name.lower() == _NAME), None)
        begun = False
        try:
            with _answering(None if sent is None else sent.decode("latin-1")) as exchange:

                async def sending(message: dict[str, Any]) -> None:
                    nonlocal begun
                    if message["type"] == "http.response.start":
                        begun = True
                        header = exchange.header
                        more = [] if header is None else [(_NAME, header.encode())]
                        message = message | {"headers": [*message.get("headers", ()), *more]}
                    await send(message)

                await self._app(scope, receive, sending)
        except (TokenError, BehindError) as error:
            if begun:
                raise
            status, headers, body = _refusal(error)
            pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": status.value, "headers": pairs})
            await send({"type": "http.response.body", "body": body})


@contextmanager
def _answering(sent: str | None) -> Iterator[_Exchange]:
    exchange = _Exchange(None if sent is None else PositionToken.parse(sent.strip()))
    before = _exchange.set(exchange)
    try:
        yield exchange
    finally:
        _exchange.reset(before)


def _refusal(error: TokenError | BehindError) -> tuple[HTTPStatus, dict[str, str], bytes]:
    headers = {"Content-Type": _JSON}
    if isinstance(error, BehindError):
        status = HTTPStatus.SERVICE_UNAVAILABLE
        headers["Retry-After"] = str(RETRY_AFTER_S)
    elif isinstance(error, TokenMalformedError):
        status = HTTPStatus.BAD_REQUEST
    else:
        status = HTTPStatus.PRECONDITION_FAILED
    fields = {"code": error.code, "message": error.message, "detail": error.detail}
    return status, headers, orjson.dumps(fields | {"hint": error.hint})
