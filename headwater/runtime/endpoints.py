"""Addresses of the services of one Headwater."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses of the five services; the same shape for spawned and external ones.

    A service that the spec leaves out has an empty address.

    Attributes:
        postgres_dsn: ``postgresql://`` with password, or None without a spawned Postgres.
        kafka_bootstrap: ``host:port`` list.
        connect_url: Base URL of Kafka Connect's REST interface, without a trailing slash.
        search_url: Base URL of OpenSearch, without a trailing slash.
        cache_url: ``redis://host:port/0``.
        spark_url: ``spark://host:port`` of a spawned cluster.
    """

    postgres_dsn: str | None = field(default=None, repr=False)
    kafka_bootstrap: str = ""
    connect_url: str = ""
    search_url: str = ""
    cache_url: str = ""
    spark_url: str = ""
