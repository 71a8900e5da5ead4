"""One Kafka broker that is its own controller (KRaft)."""

from __future__ import annotations

import base64
import subprocess
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from cdc.broker.producing.producer import RECORD_BYTES_MAX
from headwater.runtime.errors import ServiceFailedError
from headwater.runtime.identity import launcher
from headwater.runtime.probe import kafka_answers
from headwater.runtime.process import Launch, child_environment
from headwater.runtime.servers.java_server import JAVA_ENV, JavaProgram
from headwater.runtime.servers.template import render_to
from headwater.runtime.spec import HOST

if TYPE_CHECKING:
    from headwater.runtime.home import Home

HEAP_MB: Final = 320
_FORMAT_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Kafka:
    """A spawned Kafka.

    Attributes:
        home: Home folder, which holds its data.
        port: Loopback port of the broker.
        controller_port: Loopback port of the controller.
        program: Java and jars.
        memory_mb: Heap.
    """

    name: ClassVar[str] = "kafka"
    depends_on: ClassVar[tuple[str, ...]] = ()

    home: Home
    port: int
    controller_port: int
    program: JavaProgram
    memory_mb: int = HEAP_MB

    @property
    def address(self) -> str:
        """Bootstrap address."""
        return f"{HOST}:{self.port}"

    def prepare(self) -> None:
        """Writes the configuration, and formats the log folder if it is new."""
        data = self.home.data(self.name)
        data.mkdir(parents=True, exist_ok=True)
        conf = self.home.conf(self.name)
        render_to(conf, "log4j2.properties", level="info")
        settings = render_to(
            conf,
            "server.properties",
            controller_host=HOST,
            controller_port=self.controller_port,
            listeners=f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self.controller_port}",
            advertised_listeners=f"PLAINTEXT://{HOST}:{self.port}",
            security_map="PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            data_directory=data,
            record_bytes_max=RECORD_BYTES_MAX,
        )
        if (data / "meta.properties").exists():
            return
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # with "=", because an id may start with a dash
        wanted = f"--cluster-id={cluster}"
        arguments = ("format", "--ignore-formatted", wanted, "-c", str(settings))
        self._run("kafka.tools.StorageTool", *arguments)

    def launch(self) -> Launch:
        """Returns how to start the server."""
        settings = self.home.conf(self.name) / "server.properties"
        argv = self.program.command(
            "kafka.Kafka", str(settings), heap_mb=self.memory_mb, options=self._options()
        )
        return Launch(argv=argv, env=JAVA_ENV, stop_timeout_s=15.0)

    def answers(self, timeout_s: float) -> bool:
        """Whether the broker answers a metadata request."""
        return kafka_answers(self.address, timeout_s)

    def _options(self) -> list[str]:
        conf = self.home.conf(self.name)
        return [f"-Dlog4j2.configurationFile={conf / 'log4j2.properties'}"]

    def _run(self, main: str, *arguments: str) -> None:
        argv = self.program.command(
            main, *arguments, heap_mb=128, options=["-XX:TieredStopAtLevel=1", *self._options()]
        )
        done = subprocess.run(
            launcher(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FORMAT_TIMEOUT_S,
            env=child_environment(JAVA_ENV),
            check=False,
        )
        if done.returncode != 0:
            raise ServiceFailedError(
                "kafka could not format its log folder",
                detail=(done.stdout + done.stderr).strip()[-500:],
                hint=f"see the folder {self.home.data(self.name)}",
            )
