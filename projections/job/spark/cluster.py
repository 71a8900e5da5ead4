"""Checks what a job needs from a cluster: a master, executors, one shared folder.

Spark itself waits for executors without limit and reports that in its log only; here each wait has
a limit.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from foundation.waiting import looks, wait_until
from projections.common.fault import Fault, FaultError
from projections.common.shared_folder import SharedFolder
from projections.errors import (
    ClusterError,
    FolderNotSharedError,
    MasterUnreachableError,
    NoExecutorsError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

MASTER_WAIT_S: Final = 20.0
"""For a standalone master to answer."""

EXECUTORS_WAIT_S: Final = 120.0
"""For the first executor, also after all were lost: a machine may have to be found for it."""

TAKEN_WAIT_S: Final = 240.0
"""For a cluster to take the job: Spark copies its jars to YARN first. The supervisor waits longer,
so that the job can still report why it ended."""

_POLL_S: Final = 0.2
_CONNECT_S: Final = 2.0
_STANDALONE: Final = "spark://"
_DETAIL_MAX: Final = 300


def await_master(master: str) -> None:
    """Waits until a standalone master listens; for other clusters, Spark reports enough itself.

    Args:
        master: The setting; it may name several, one of which leads.

    Raises:
        MasterUnreachableError: None listens.
    """
    if not master.startswith(_STANDALONE):
        return
    if not wait_until(lambda: any(map(_listens, addresses(master))), MASTER_WAIT_S, _POLL_S):
        raise MasterUnreachableError(
            "no Spark master listens at that address",
            detail=f"{master}, for {MASTER_WAIT_S:.0f} s",
            hint="start the cluster, or check spark.master in headwater.toml",
        )


def addresses(master: str) -> list[tuple[str, int]]:
    """Returns hosts and ports of a standalone cluster's masters.

    Raises:
        MasterUnreachableError: It is no address.
    """
    try:
        parts = [urlsplit(f"//{part}") for part in master.removeprefix(_STANDALONE).split(",")]
        return [(part.hostname or "", part.port or 0) for part in parts]
    except ValueError:
        hint = "spark://host:port, for several masters spark://host:port,host:port"
        raise MasterUnreachableError(
            "spark.master is no address", detail=master, hint=hint
        ) from None


def near(master: str) -> bool:
    """Returns whether all masters of a standalone cluster are on this machine's loopback."""
    return master.startswith(_STANDALONE) and all(
        host in {"127.0.0.1", "localhost"} for host, _ in addresses(master)
    )


@contextmanager
def refusals(master: str) -> Iterator[None]:
    """Translates Spark's error if a cluster does not accept the job.

    Raises:
        ClusterError: It does not.
    """
    try:
        yield
    except Py4JJavaError as error:
        text = str(error.java_exception.toString()).splitlines()[0][:_DETAIL_MAX]
        hint = "headwater logs projections; master and pyspark must be of the same version"
        raise ClusterError(
            "the cluster does not take the job", detail=f"{master}: {text}", hint=hint
        ) from None


@contextmanager
def time_limit() -> Iterator[None]:
    """Ends the JVM of a driver that a cluster neither takes nor refuses.

    A YARN queue without capacity for the job keeps it waiting, and Spark waits as long.

    Raises:
        NoExecutorsError: The time is up.
    """
    late, answered = threading.Event(), threading.Event()

    def end() -> None:
        if answered.wait(TAKEN_WAIT_S):
            return
        late.set()
        gateway: Any = None
        while gateway is None and not answered.wait(_POLL_S):  # the JVM may still be starting
            gateway = SparkContext._gateway  # noqa: SLF001  # its process has no other name
        if gateway is not None and not answered.is_set():
            gateway.proc.kill()

    threading.Thread(target=end, name="cluster's answer", daemon=True).start()
    try:
        yield
    except (Py4JError, OSError):
        if late.is_set():
            raise no_executors(TAKEN_WAIT_S) from None
        raise
    finally:
        answered.set()


def executors(session: SparkSession) -> int:
    """Returns how many executors the job has, beside its driver."""
    # public in Scala only
    known = session.sparkContext._jsc.sc().getExecutorMemoryStatus()  # noqa: SLF001
    return int(known.size()) - 1


def await_executors(session: SparkSession) -> None:
    """Waits until the job has an executor.

    Raises:
        NoExecutorsError: It gets none.
        ClusterError: The cluster has sent the job away.
    """
    for _ in looks(EXECUTORS_WAIT_S, _POLL_S):
        try:
            count = executors(session)
        except Py4JError as error:
            raise ClusterError(
                "the cluster has sent the job away",
                detail=type(error).__name__,
                hint="headwater logs projections",
            ) from None
        if count > 0:
            return
    raise no_executors(EXECUTORS_WAIT_S)


def no_executors(waited_s: float) -> NoExecutorsError:
    """Returns the error of a job that has had no executor for so many seconds."""
    return NoExecutorsError(
        "the cluster gives the job no executor",
        detail=f"for {waited_s:.0f} s",
        hint="are there workers, and has one of them spark.executor.memory and spark.executor.cores"
        " to give? Another job may have them all: spark.cores.max limits each. The master's page"
        " shows who has what",
    )


class ExecutorWatch:
    """Detects that a job has had no executor for long.

    Spark waits for one without limit: a master that has forgotten the job assigns none, and knows
    the job again only after a restart.

    Args:
        session: The job's.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._had_at = time.monotonic()

    def check(self) -> None:
        """Checks the executors, at intervals.

        Raises:
            NoExecutorsError: There has been none for too long.
        """
        try:
            count = executors(self._session)
        except (Py4JError, OSError):
            return  # the driver is ending, and its end is reported elsewhere
        now = time.monotonic()
        if count > 0:
            self._had_at = now
        elif now - self._had_at > EXECUTORS_WAIT_S:
            raise no_executors(EXECUTORS_WAIT_S)


def shared(session: SparkSession, root: Path, source: str) -> str:
    """Checks that every present executor works in the driver's folder.

    Args:
        session: The job's; nothing else runs in it yet, so that each executor gets a task.
        root: The folder.
        source: The job's source.

    Returns:
        The driver's mark in it, for executors that come later.

    Raises:
        FolderNotSharedError: One does not see it, or cannot write there.
    """
    folder = SharedFolder.marked(root, source)
    tasks = session.range(executors(session), numPartitions=executors(session))
    try:
        replies = tasks.mapInArrow(_Reply(folder), "reply string").collect()
    except Exception as error:
        fault = Fault.find(str(error))
        if fault is None or fault.code != FolderNotSharedError.code:
            raise
        raise FolderNotSharedError(fault.message, detail=fault.detail, hint=fault.hint) from None
    for row in replies:
        folder.take(row["reply"])
    return folder.mark


class _Reply:
    def __init__(self, folder: SharedFolder) -> None:
        self._folder = folder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        try:
            reply = self._folder.reply()
        except FolderNotSharedError as error:
            host = socket.gethostname()
            detail = f"{error.detail}, on {host}"
            raise FaultError(
                FolderNotSharedError(error.message, detail=detail, hint=error.hint)
            ) from None
        yield pa.RecordBatch.from_pydict({"reply": [reply]})


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except (OSError, OverflowError):
        return False
    return True
