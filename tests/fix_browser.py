"""A real browser, asked by the W3C's WebDriver protocol; none is made up where there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OPTIONS = {
    "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
}
_STARTED_S = 30.0


class Browser:
    """One window.

    Args:
        address: The driver's.
    """

    def __init__(self, address: str) -> None:
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": _OPTIONS,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        self._address = address
        found = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{found['sessionId']}"

    def open(self, url: str) -> None:
        """Goes to a page."""
        self._ask("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Returns what a script returns that runs in the page."""
        body = {"script": script, "args": list(arguments)}
        return self._ask("POST", f"{self._session}/execute/sync", body)

    def await_true(self, condition: str, *arguments: Any, timeout_s: float = 30.0) -> None:
        """Returns once an expression is true in the page.

        Raises:
            TimeoutError: It is not by then; the page's text is in the message.
        """
        # the page itself looks again at each frame, and answers once
        script = f"""
            const done = arguments[arguments.length - 1], until = performance.now() + arguments[0];
            const given = Array.from(arguments).slice(1, -1);
            const look = () => {{
                const found = ((...given) => {condition})(...given);
                if (found || performance.now() > until) done(Boolean(found));
                else setTimeout(look, 50);
            }};
            look();
        """
        self._ask("POST", f"{self._session}/timeouts", {"script": round(1500 * timeout_s)})
        body = {"script": script, "args": [1000 * timeout_s, *arguments]}
        if not self._ask("POST", f"{self._session}/execute/async", body):
            text = self.run("return document.body.innerText")
            raise TimeoutError(f"never became true: {condition}\n{text}")

    def complaints(self) -> list[str]:
        """Returns what the browser said of the page since it was asked last: errors, refusals."""
        found = self._ask("POST", f"{self._session}/se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] in {"SEVERE", "WARNING"}]

    def size(self, width: int, height: int) -> None:
        """Makes the window so large, in pixels."""
        self._ask("POST", f"{self._session}/window/rect", {"width": width, "height": height})

    def close(self) -> None:
        """Ends the browser."""
        self._ask("DELETE", self._session)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310  # the driver that was just started
            self._address + path, data, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=90) as answer:  # noqa: S310
            return json.load(answer)["value"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser, where one is installed: Debian's chromium and chromium-driver."""
    driver = shutil.which("chromedriver")
    if driver is None or shutil.which("chromium") is None:
        pytest.skip("no chromium and chromedriver here")
    log = tmp_path_factory.mktemp("browser") / "driver.log"
    command = [driver, "--port=0", f"--log-path={log}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            window = Browser(f"http://127.0.0.1:{_port(process, log)}")
            yield window
            window.close()
        finally:
            process.terminate()


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """The port that the driver says it has started on."""
    deadline = time.monotonic() + _STARTED_S
    assert process.stdout is not None
    for line in process.stdout:
        if "started successfully on port" in line:
            return int(line.split()[-1].rstrip("."))
        if time.monotonic() > deadline:
            break
    raise TimeoutError(log.read_text())
