"""Kafka Connect in distributed mode, one worker, with Debezium and Headwater's converter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from cdc.broker.producing.producer import RECORD_BYTES_MAX
from cdc.connect import converter
from headwater.runtime.probe import connect_answers
from headwater.runtime.process import Launch
from headwater.runtime.servers.java_server import JAVA_ENV, JavaProgram
from headwater.runtime.servers.template import render_to
from headwater.runtime.spec import HOST

if TYPE_CHECKING:
    from pathlib import Path

    from headwater.runtime.home import Home

HEAP_MB: Final = 512
GROUP: Final = "headwater-connect"


def secrets_folder(home: Home) -> Path:
    """Folder that the workers may read secrets from; see `cdc.connect.secrets`."""
    return home.conf(Connect.name) / "secrets"


@dataclass(frozen=True, slots=True)
class Connect:
    """A spawned Kafka Connect.

    Attributes:
        home: Home folder, which holds its configuration.
        port: Loopback port of the REST interface.
        bootstrap: Address of Kafka, spawned or external.
        program: Java and jars.
        depends_on: ``kafka`` if Kafka is spawned.
        memory_mb: Heap.
    """

    name: ClassVar[str] = "connect"

    home: Home
    port: int
    bootstrap: str
    program: JavaProgram
    depends_on: tuple[str, ...] = ()
    memory_mb: int = HEAP_MB

    @property
    def address(self) -> str:
        """Base URL of the REST interface."""
        return f"http://{HOST}:{self.port}"

    def prepare(self) -> None:
        """Write the configuration."""
        conf = self.home.conf(self.name)
        # Debezium is on the class path; an empty plugin folder keeps Connect from scanning others.
        plugins = conf / "plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        secrets = secrets_folder(self.home)
        secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        render_to(conf, "log4j2.properties", level="info")
        render_to(
            conf,
            "connect-distributed.properties",
            bootstrap=self.bootstrap,
            group=GROUP,
            listen_host=HOST,
            advertised_host=HOST,
            port=self.port,
            plugin_path=plugins,
            record_bytes_max=RECORD_BYTES_MAX,
            secrets=secrets,
        )

    def launch(self) -> Launch:
        """Returns how to start the server."""
        conf = self.home.conf(self.name)
        program = JavaProgram(self.program.java, (*self.program.jars, converter.JAR))
        argv = program.command(
            "org.apache.kafka.connect.cli.ConnectDistributed",
            str(conf / "connect-distributed.properties"),
            heap_mb=self.memory_mb,
            options=[f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}"],
        )
        return Launch(argv=argv, env=JAVA_ENV, stop_timeout_s=15.0)

    def answers(self, timeout_s: float) -> bool:
        """Whether it returns its version and its list of connectors."""
        return connect_answers(self.address, timeout_s)
