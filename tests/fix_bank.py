"""Releases of the example bank as processes, and clients with a ledger of what was accepted."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PATIENCE_S = 20
EARLIER = (
    ("upcaster", r"@upcast\(.*?\n\n\n", ""),
    ("import", r"    upcast,\n", ""),
    ("version", r'"bank.withdrawn", version=2', '"bank.withdrawn"'),
    ("field", r"    note: str\n", ""),
    ("field of the command", r'    note: str = ""\n', ""),
    ("argument", r", command\.note\)", ")"),
)
"""Edits of `domain.py` that make the release before: its withdrawals have no note."""


def earlier_release(folder: Path) -> Path:
    """Returns a folder with the release before."""
    shutil.copytree(ROOT / "examples" / "bank", folder / "examples" / "bank")
    shutil.copy(ROOT / "examples" / "__init__.py", folder / "examples")
    domain = folder / "examples" / "bank" / "domain.py"
    text = domain.read_text()
    for what, old, new in EARLIER:
        text, count = re.subn(old, new, text, flags=re.DOTALL)
        assert 1 == count, what
    domain.write_text(text)
    return folder


class Release:
    """A running server of one release.

    Args:
        folder: Where its `examples` are.
        environment: Its settings.
        log: File that its output is appended to.
    """

    def __init__(self, folder: Path, environment: dict[str, str], log: Path) -> None:
        from tests.fix_standby import free_port

        self.port = free_port()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.bank.server", str(self.port)],
                cwd=folder,
                env={**os.environ, **environment, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Waits until one of its workers answers."""

        def answers() -> bool:
            with suppress(OSError, http.client.HTTPException):
                return ask(self.port, "GET", "/ready")[0] == 200
            return False

        wait_until(answers)

    def children(self) -> list[psutil.Process]:
        """Its workers and runners."""
        try:
            return psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def kill_one(self, chance: random.Random) -> None:
        """Kills a worker or a runner; the server starts another one."""
        children = self.children()
        if children:
            chance.choice(children).kill()

    def kill(self) -> None:
        """Kills the server and its children at once, as when its machine dies."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ends it as a deploy does."""
        children = self.children()
        self._process.terminate()
        self._process.wait(timeout=PATIENCE_S)
        _, left = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert [] == left

    def close(self) -> None:
        """Ends what is left of it."""
        if self._process.poll() is None:
            self.kill()


@dataclass
class Clients:
    """What clients asked for and were answered.

    Attributes:
        ports: Of the servers that run.
        accepted: Path and body of each command with status 200, by its key.
        refused: The refusal's name for each key with status 409.
        retried: Answers, or errors, after which a command was sent again.
    """

    ports: list[int]
    accepted: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    retried: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def post(self, path: str, **body: str) -> dict[str, Any] | None:
        """Sends a command until it is accepted or refused; None if it is refused."""
        key = str(uuid4())
        status, answer = self.answer("POST", path, body, key)
        assert status in (200, 409), (path, body, answer)
        with self._lock:
            if status == 409:
                self.refused[key] = answer
                return None
            self.accepted[key] = (path, body)
        return answer

    def answer(
        self, method: str, path: str, body: dict[str, str] | None = None, key: str = ""
    ) -> tuple[int, Any]:
        """Asks any of the servers until one answers something else than 503."""

        def attempt() -> tuple[int, Any]:
            try:
                status, answer = ask(random.choice(self.ports), method, path, body, key)  # noqa: S311
            except (OSError, http.client.HTTPException) as error:
                status, answer = 503, type(error).__name__
            if status == 503:
                with self._lock:
                    self.retried[answer] += 1
            return status, answer

        return wait_until(attempt, accept=lambda seen: seen[0] != 503, pause_s=0.5)

    def traffic(self, accounts: list[str], seed: int) -> None:
        """Deposits, withdraws and pays at random until the clients are ended."""
        chance = random.Random(seed)  # noqa: S311  # repeats with the run
        while not self._ended.is_set():
            source, target = chance.sample(accounts, 2)
            amount = str(Decimal(chance.randint(1, 500)) / 100)
            kind = chance.choice(["deposit", "withdraw", "payment"])
            if kind != "payment":
                self.post(f"/{kind}", account=source, amount=amount)
                continue
            payment = str(uuid4())
            self.post(
                "/request-payment", payment=payment, source=source, target=target, amount=amount
            )
            if chance.random() < 0.8:
                self.post("/confirm-payment", payment=payment)

    def end(self) -> None:
        """Ends the traffic after the commands under way."""
        self._ended.set()

    def commands(self, path: str) -> Iterator[dict[str, str]]:
        """The bodies of the accepted commands of a path."""
        return (body for each, body in self.accepted.values() if each == path)


def ask(
    port: int, method: str, path: str, body: dict[str, str] | None = None, key: str = ""
) -> tuple[int, Any]:
    """Sends one request; returns status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        headers = {"Idempotency-Key": key} if key else {}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
