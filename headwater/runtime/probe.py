"""Readiness probes: each asks in the protocol of the service, within a timeout."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit


def postgres_answers(dsn: str, timeout_s: float) -> bool:
    """Whether Postgres runs a query."""
    import psycopg  # noqa: PLC0415  # heavy

    try:
        # psycopg takes whole seconds, and reads 1 as 2.
        wait_s = max(2, round(timeout_s))
        with psycopg.connect(dsn, connect_timeout=wait_s, autocommit=True) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.Error:
        return False


def kafka_answers(bootstrap: str, timeout_s: float) -> bool:
    """Whether a broker answers a metadata request."""
    from cdc.broker.client.probe import broker_answers  # noqa: PLC0415  # heavy

    return broker_answers(bootstrap, timeout_s)


def connect_answers(url: str, timeout_s: float) -> bool:
    """Whether Kafka Connect returns its version and its herder has started.

    The worker answers ``/`` before it has joined its group; ``/connectors`` only afterwards.
    """
    root = get_json(url, "/", timeout_s)
    return isinstance(root, dict) and "version" in root and _is_list(url, timeout_s)


def _is_list(url: str, timeout_s: float) -> bool:
    return isinstance(get_json(url, "/connectors", timeout_s), list)


def search_answers(url: str, timeout_s: float) -> bool:
    """Whether OpenSearch's cluster is green or yellow."""
    health = get_json(url, "/_cluster/health", timeout_s)
    return isinstance(health, dict) and health.get("status") in {"green", "yellow"}


def cache_answers(url: str, timeout_s: float) -> bool:
    """Whether Valkey or Redis answers PING; a request for a password also counts."""
    parts = urlsplit(url)
    try:
        address = (parts.hostname or "127.0.0.1", parts.port or 6379)
        with socket.create_connection(address, timeout=timeout_s) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
    except OSError:
        return False


def get_json(url: str, path: str, timeout_s: float) -> Any | None:
    """Returns the JSON response to a GET, or None; never uses a proxy."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "127.0.0.1", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + path)
        answer = connection.getresponse()
        body = answer.read()
        return json.loads(body) if answer.status == http.client.OK else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
