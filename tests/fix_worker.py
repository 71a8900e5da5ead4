"""A Connect worker of a test's own, killed and started again as often as the test likes."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from headwater.runtime.home import Home
from headwater.runtime.identity import launcher
from headwater.runtime.java import jars
from headwater.runtime.java.java import find_java
from headwater.runtime.servers.connect import GROUP, Connect
from headwater.runtime.servers.java_server import JavaProgram
from tests.fix_standby import free_port
from tests.waiting import LONG_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Worker:
    """A worker; its group has no other, so it is alone with its connectors."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        home = Home(folder)
        home.create()
        java = find_java().path
        self._connect = Connect(
            home, free_port(), bootstrap, JavaProgram(java, tuple(jars.ensure("kafka")))
        )
        self._connect.prepare()
        conf = home.conf(Connect.name) / "connect-distributed.properties"
        conf.write_text(conf.read_text().replace(GROUP, f"t-{secrets.token_hex(4)}"))
        self._log = folder / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self._connect.address

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Starts it; does not wait until it answers."""
        launch = self._connect.launch()
        environment = {**os.environ, **{k: v for k, v in launch.env.items() if v is not None}}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                launcher(launch.argv, death_signal=signal.SIGKILL),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    def await_answer(self) -> None:
        wait_until(lambda: self._connect.answers(2.0), "the worker's answer", timeout_s=LONG_S)

    def kill(self) -> None:
        """Kills it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)
            self._process = None


@pytest.fixture(scope="module")
def module_worker(
    tmp_path_factory: pytest.TempPathFactory, kafka_bootstrap: str
) -> Iterator[Worker]:
    """The worker that the tests of a module share."""
    made = Worker(tmp_path_factory.mktemp("worker"), kafka_bootstrap)
    yield made
    made.kill()


@pytest.fixture
def worker(module_worker: Worker) -> Worker:
    """A worker that runs, and answers; nobody but the test starts it again."""
    if not module_worker.running:
        module_worker.start()
    module_worker.await_answer()
    return module_worker
