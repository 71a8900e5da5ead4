"""Kafka, Connect and OpenSearch once for all workers of a run, started by the controller.

A worker asks over a socket for the servers that its tests need; the first one to ask has them
started, the others get the same addresses. They live as long as the controller, however it ends.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headwater import runtime
from headwater.runtime import External, RuntimeSpec, ServiceName, Spawned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from headwater.runtime import Endpoints

_FOLDER: Final = "shared_servers"
_HEAPS_MB: Final = {ServiceName.CONNECT: 640}
"""Connect has the connectors of several tests at once."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        config.pluginmanager.register(SharedServers(config), "headwater-shared-servers")


def ask_for(config: pytest.Config, names: Iterable[ServiceName]) -> dict[ServiceName, External]:
    """Returns where the controller runs these servers; nothing in a run without workers."""
    folder = _shared_folder(config)
    if folder is None or not (wanted := sorted(names)):
        return {}
    with Client(str(folder / "ask"), family="AF_UNIX") as controller:
        controller.send(wanted)
        answer: Mapping[ServiceName, str] | str = controller.recv()
    assert not isinstance(answer, str), f"the shared servers could not be started: {answer}"
    return {name: External(address) for name, address in answer.items()}


def shared_home(config: pytest.Config) -> Path | None:
    """Home folder of the shared servers, or None in a run without workers."""
    folder = _shared_folder(config)
    return None if folder is None else folder / ".headwater"


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """Kafka and Connect of a module's own, whose tests kill or freeze them."""
    from tests.fix_services import START_TIMEOUT_S

    home = tmp_path_factory.mktemp("own") / ".headwater"
    names = (ServiceName.KAFKA, ServiceName.CONNECT)
    spec = RuntimeSpec(home=home, services={name: Spawned() for name in names}, lifeline=True)
    yield runtime.up(spec, timeout_s=START_TIMEOUT_S)
    runtime.down(home)


def _shared_folder(config: pytest.Config) -> Path | None:
    given = getattr(config, "workerinput", {}).get(_FOLDER)
    return None if given is None else Path(given)


class SharedServers:
    """Starts servers for the workers that ask, in the controller.

    Args:
        config: The controller's.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = Path(tempfile.mkdtemp(prefix="headwater-tests-"))
        self._listener = Listener(str(self._folder / "ask"), family="AF_UNIX")
        self._started: dict[ServiceName, str] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._answer_all, name="shared servers", daemon=True).start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Says to a worker where it can ask."""
        node.workerinput[_FOLDER] = str(self._folder)

    def pytest_sessionstart(self) -> None:
        """Starts them at once where all tests run, while workers still collect."""
        if self._config.getoption("--require-integration"):
            from tests.fix_services import SHARED

            threading.Thread(target=self._addresses, args=(SHARED,), daemon=True).start()

    def pytest_unconfigure(self) -> None:
        """Ends what was started, and removes its files."""
        self._listener.close()
        with self._lock:
            runtime.down(self._folder / ".headwater")
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answer_all(self) -> None:
        while True:
            try:
                worker = self._listener.accept()
            except OSError:  # which is how a closed listener ends
                return
            threading.Thread(target=self._answer, args=(worker,), daemon=True).start()

    def _answer(self, worker: Connection[Any, Any]) -> None:
        with worker:
            try:
                worker.send(self._addresses(worker.recv()))
            except Exception as error:  # noqa: BLE001  # the worker raises it
                worker.send(f"{type(error).__name__}: {error}")

    def _addresses(self, names: Iterable[ServiceName]) -> dict[ServiceName, str]:
        from tests.fix_services import START_TIMEOUT_S, attached_to

        wanted = [name for name in names if attached_to(self._config, name) is None]
        with self._lock:
            if not {*wanted} <= self._started.keys():
                spec = RuntimeSpec(
                    home=self._folder / ".headwater",
                    services={name: Spawned(memory_mb=_HEAPS_MB.get(name)) for name in wanted},
                    lifeline=True,
                )
                found = runtime.up(spec, timeout_s=START_TIMEOUT_S)
                addresses = {
                    ServiceName.KAFKA: found.kafka_bootstrap,
                    ServiceName.CONNECT: found.connect_url,
                    ServiceName.SEARCH: found.search_url,
                }
                self._started = {name: addresses[name] for name in wanted}
            return {name: self._started[name] for name in wanted}
