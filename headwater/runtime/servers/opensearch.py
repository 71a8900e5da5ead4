"""One OpenSearch node inside its runner, on loopback."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from headwater.runtime.probe import search_answers
from headwater.runtime.process import Launch
from headwater.runtime.servers.java_server import JAVA_ENV, JavaProgram
from headwater.runtime.servers.template import render_to
from headwater.runtime.spec import HOST

if TYPE_CHECKING:
    from headwater.runtime.home import Home

HEAP_MB: Final = 512
_MAIN: Final = "org.codelibs.opensearch.runner.OpenSearchRunner"


@dataclass(frozen=True, slots=True)
class OpenSearch:
    """A spawned OpenSearch.

    Attributes:
        home: Home folder, which holds its data.
        port: Loopback port of the HTTP interface.
        transport_port: Loopback port for communication between nodes.
        program: Java and jars.
        memory_mb: Heap.
    """

    name: ClassVar[str] = "opensearch"
    depends_on: ClassVar[tuple[str, ...]] = ()

    home: Home
    port: int
    transport_port: int
    program: JavaProgram
    memory_mb: int = HEAP_MB

    @property
    def address(self) -> str:
        """Base URL."""
        return f"http://{HOST}:{self.port}"

    def prepare(self) -> None:
        """Write the configuration."""
        self.home.data(self.name).mkdir(parents=True, exist_ok=True)
        conf = self.home.conf(self.name)
        render_to(
            conf,
            "opensearch.yml",
            cluster="headwater",
            host=HOST,
            transport_port=self.transport_port,
        )
        log_settings = render_to(conf, "log4j2.properties", level="info")
        log_settings.replace(conf / "log4j2-headwater.properties")

    def launch(self) -> Launch:
        """Returns how to start the server: the runner's first node gets the base port plus one."""
        conf = self.home.conf(self.name)
        data = self.home.data(self.name)
        argv = self.program.command(
            _MAIN,
            "-basePath", str(data),
            "-confPath", str(conf),
            "-dataPath", str(data / "data"),
            "-logsPath", str(data / "logs"),
            "-clusterName", "headwater",
            "-numOfNode", "1",
            "-baseHttpPort", str(self.port - 1),
            "-disableESLogger",
            "-printOnFailure",
            heap_mb=self.memory_mb,
            options=[
                f"-Dlog4j2.configurationFile={conf / 'log4j2-headwater.properties'}",
                "-Dlog4j2.disable.jmx=true",
                "-Dio.netty.noUnsafe=true",
                "-Dio.netty.allocator.numDirectArenas=0",
                "-XX:MaxDirectMemorySize=128m",
            ],
        )  # fmt: skip
        return Launch(argv=argv, env=JAVA_ENV, stop_timeout_s=15.0)

    def answers(self, timeout_s: float) -> bool:
        """Whether the cluster is green or yellow."""
        return search_answers(self.address, timeout_s)
