"""The server of a dashboard: one page, its style and its script, and the answers that it shows.

It reads and never writes, answers GET and HEAD alone, and listens only on this machine by default.
While it does, it answers only to names of this machine: a page of another process's that has its
own name point here would read the answers otherwise (DNS rebinding). What it sends forbids
everything but its own script and style.
"""

from __future__ import annotations

import errno
import logging
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from foundation.errors import EXIT_MISSING
from headwater.errors import HeadwaterError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headwater.reading.dashboard.answers import Answers

_LOGGER = logging.getLogger(__name__)
_PAGES: Final = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
}
_ANSWERS: Final = "/panels.json"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class DashboardPortError(HeadwaterError):
    """The dashboard cannot listen on the address."""

    code = "HW-U004"
    exit_code = EXIT_MISSING


class DashboardServer(ThreadingHTTPServer):
    """Serves a dashboard until it is shut down.

    Args:
        answers: Supplies the data.
        host: Address to listen to.
        port: Port; 0 for a free one.

    Raises:
        DashboardPortError: Another process listens there, or this machine does not have the
            address.
    """

    daemon_threads = True

    def __init__(self, answers: Answers, host: str, port: int) -> None:
        self.answers = answers
        self.names = _LOCAL if _is_local(host) else None
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise DashboardPortError(
                f"cannot listen on {host}:{port}",
                detail=error.strerror,
                hint="--port 0 selects a free port"
                if error.errno == errno.EADDRINUSE
                else "set --host to an address of this machine, such as 127.0.0.1",
            ) from None

    @property
    def url(self) -> str:
        """Returns the address of the page."""
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs that a request failed: usually the browser has disconnected."""
        del request, client_address
        error = sys.exception()
        gone = isinstance(error, OSError)  # what is sent, and nobody takes
        level = logging.DEBUG if gone else logging.WARNING
        _LOGGER.log(level, "a request was not answered: %s", type(error).__name__)
        _LOGGER.debug("it was not answered for this reason", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: DashboardServer
    server_version = "headwater"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answers with a page, the answers, or why not."""
        path, _, _ = self.path.partition("?")
        if self.server.names is not None and _name(self.headers["Host"]) not in self.server.names:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"this name is not served here\n")
        elif path == _ANSWERS:
            self._answers()
        elif path in _PAGES:
            file, kind = _PAGES[path]
            body = files("headwater.reading.dashboard").joinpath("page", file).read_bytes()
            self._send(HTTPStatus.OK, body, [("Content-Type", kind)])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing here\n")

    do_HEAD = do_GET  # noqa: N815  # as it is called

    def _answers(self) -> None:
        try:
            answer = self.server.answers.newest()
        except Exception as error:  # noqa: BLE001  # told to whoever asks, who asks again
            _LOGGER.warning("the panels cannot be answered: %s", type(error).__name__)
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"the panels cannot be answered now\n")
            return
        tag = ("ETag", answer.etag)
        if answer.etag in (self.headers["If-None-Match"] or ""):
            self._send(HTTPStatus.NOT_MODIFIED, b"", [tag])
        else:
            kind = ("Content-Type", "application/json")
            self._send(HTTPStatus.OK, answer.body, [kind, tag])

    def _send(
        self, status: HTTPStatus, body: bytes, headers: Iterable[tuple[str, str]] = ()
    ) -> None:
        told = {"Content-Type": "text/plain; charset=utf-8", **_HEADERS} | dict(headers)
        if status is HTTPStatus.NOT_MODIFIED:
            del told["Content-Type"]
        else:
            told["Content-Length"] = str(len(body))
        self.send_response(status)
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as it is called
        """Requests go to the log, not to the terminal."""
        _LOGGER.debug(format, *args)


def _name(host: str | None) -> str:
    """A Host header without its port."""
    host = (host or "").lower()
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
