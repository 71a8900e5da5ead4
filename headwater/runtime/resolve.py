"""Resolves the addresses of a spec's services, spawned or external."""

from __future__ import annotations

from headwater.runtime.endpoints import Endpoints
from headwater.runtime.errors import ServiceFailedError
from headwater.runtime.home import Home
from headwater.runtime.ports import PortBook
from headwater.runtime.servers.postgres import Postgres
from headwater.runtime.spec import HOST, SPARK_MASTER, External, RuntimeSpec, ServiceName

_SHAPE = {
    ServiceName.KAFKA: "{host}:{port}",
    ServiceName.CONNECT: "http://{host}:{port}",
    ServiceName.SEARCH: "http://{host}:{port}",
    ServiceName.CACHE: "redis://{host}:{port}/0",
}


def resolve_endpoints(spec: RuntimeSpec) -> Endpoints:
    """Returns the address of each service.

    Raises:
        ServiceFailedError: A spawned service was never started in this home folder.
    """
    book = PortBook(Home(spec.home.resolve()).ports)

    def address(name: ServiceName) -> str:
        service = spec.services.get(name)
        if service is None:
            return ""
        if isinstance(service, External):
            return service.address.rstrip("/") if name is not ServiceName.KAFKA else service.address
        return _SHAPE[name].format(host=HOST, port=_port(book, name))

    return Endpoints(
        postgres_dsn=_postgres(spec, book),
        kafka_bootstrap=address(ServiceName.KAFKA),
        connect_url=address(ServiceName.CONNECT),
        search_url=address(ServiceName.SEARCH),
        cache_url=address(ServiceName.CACHE),
        spark_url=f"spark://{HOST}:{_port(book, SPARK_MASTER)}" if spec.spark else "",
    )


def _postgres(spec: RuntimeSpec, book: PortBook) -> str | None:
    service = spec.services.get(ServiceName.POSTGRES)
    if service is None:
        return None
    if isinstance(service, External):
        return service.address
    return Postgres(Home(spec.home.resolve()), _port(book, ServiceName.POSTGRES)).dsn()


def _port(book: PortBook, name: str) -> int:
    port = book.get(name)
    if port is None:
        raise ServiceFailedError(f"{name} was never started in this folder", hint="headwater up")
    return port
