"""Writes docker/config/ from the templates that the local runtime uses.

`python docker/render.py` rewrites the files; with `--check` it only says which ones are old.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from cdc.broker.producing.producer import RECORD_BYTES_MAX
from headwater.runtime.servers.connect import GROUP
from headwater.runtime.servers.postgres import MEMORY_MB as POSTGRES_MEMORY_MB
from headwater.runtime.servers.postgres import SLOT_WAL_KEEP
from headwater.runtime.servers.template import render
from headwater.runtime.servers.valkey import MEMORY_MB as CACHE_MEMORY_MB

CONFIG: Final = Path(__file__).resolve().parent / "config"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104  # inside a container; the host publishes on loopback
KAFKA_HOST_PORT: Final = 29092


def rendered() -> dict[Path, str]:
    """Text of every file, by its path."""
    return {
        CONFIG / "postgresql.conf": render(
            "postgresql.conf",
            data_directory="/var/lib/postgresql/18/docker",
            host="*",
            port=5432,
            memory_mb=POSTGRES_MEMORY_MB,
            slot_wal_keep=SLOT_WAL_KEEP,
        ),
        CONFIG / "kafka" / "server.properties": render(
            "server.properties",
            controller_host="kafka",
            controller_port=9093,
            listeners=_listeners(EVERYWHERE, EVERYWHERE) + f",CONTROLLER://{EVERYWHERE}:9093",
            advertised_listeners=_listeners("kafka", "127.0.0.1"),
            security_map="PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT,CONTROLLER:PLAINTEXT",
            data_directory="/var/lib/kafka/data",
            record_bytes_max=RECORD_BYTES_MAX,
        ),
        CONFIG / "connect-distributed.properties": render(
            "connect-distributed.properties",
            bootstrap="kafka:9092",
            group=GROUP,
            listen_host=EVERYWHERE,
            advertised_host="connect",
            port=8083,
            plugin_path="/opt/headwater/plugins",
            record_bytes_max=RECORD_BYTES_MAX,
            secrets="/etc/headwater",
        ),
        CONFIG / "log4j2.properties": render("log4j2.properties", level="info"),
        CONFIG / "opensearch.yml": render(
            "opensearch.yml", cluster="headwater", host=EVERYWHERE, transport_port=9300
        ),
        CONFIG / "valkey.conf": render(
            "valkey.conf",
            host=EVERYWHERE,
            port=6379,
            data_directory="/data",
            memory_mb=CACHE_MEMORY_MB,
        ),
    }


def main(arguments: list[str]) -> int:
    """Write the files, or name the old ones with ``--check``."""
    files = rendered()
    present = {path for path in CONFIG.rglob("*") if path.is_file()}
    old = [path for path, text in files.items() if path not in present or path.read_text() != text]
    old += sorted(present - files.keys())
    if arguments == ["--check"]:
        sys.stdout.writelines(f"old: {path.relative_to(CONFIG.parent)}\n" for path in old)
        return 1 if old else 0
    for path in present - files.keys():
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _listeners(inside: str, outside: str) -> str:
    """Containers reach the broker by its name, programs on the host by the published port."""
    return f"PLAINTEXT://{inside}:9092,HOST://{outside}:{KAFKA_HOST_PORT}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
