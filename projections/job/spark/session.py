"""The Spark session of the job, with settings for a small machine."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from projections.common.scratch_dir import Scratch
from projections.errors import WriterLockedError
from projections.incremental.spark import java_classes
from projections.job.spark import class_archive, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from projections.common.driver_lock import DriverToken
    from projections.planning.job_config import JobConfig

__all__ = [
    "JAVA_OPTIONS",
    "SparkSession",
    "hold",
    "session_beside",
    "session_ended",
    "session_of_batches",
    "settings",
    "start_session",
]

_BESIDE: Final = "local[4]"
"""Where whoever only reads runs Spark: a cluster may have all its cores with the job."""

_REPEATING: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Spark's loggers of errors that it raises all the same; their texts may contain values of rows."""

_JVM_END_S: Final = 60.0

_LOOPBACK = "127.0.0.1"
_LOG: Final = Path(__file__).with_name("log4j2.properties").as_uri()
_PYTHON = "spark.pyspark.python"

JAVA_OPTIONS: Final = (
    # one collector thread and a heap that shrinks: other servers live on the same machine
    "-XX:+UseSerialGC -XX:NewRatio=1 -XX:MinHeapFreeRatio=40 -XX:MaxHeapFreeRatio=70"
    # a driver only plans: the second compiler takes more of a small machine than it gives back
    " -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
    # Spark reads the text of a failed batch with a regular expression that recurses deeply
    " -Xss8m"
    " -XX:ReservedCodeCacheSize=96m -XX:MaxMetaspaceSize=320m -Djava.net.preferIPv4Stack=true"
)
_EXECUTOR_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.net.preferIPv4Stack=true"
)
"""Of executors on this machine, where other servers live as well."""

_CHECKPOINT_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    # home, checkpoints and tables are paths of a file system, whatever a cluster's default is
    "spark.hadoop.fs.defaultFS": "file:///",
    # a batch of one store never stands behind a batch of another
    "spark.scheduler.mode": "FAIR",
    "spark.scheduler.allocation.file": Path(__file__).with_name("pools.xml").as_uri(),
    # workers are forked from a daemon that has loaded our modules, and no thread by that
    "spark.python.daemon.module": "projections.job.spark.worker_daemon",
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    "spark.executorEnv.JE_ARROW_MALLOC_CONF": "background_thread:false",
    "spark.executorEnv._RJEM_MALLOC_CONF": "background_thread:false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # each call on a column would tell the JVM where in our code it was made: ten calls for one
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # the older classes of Java skip 5 to 14 October 1582, where their calendar changes
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # inputs of derived views that have fewer files are read without Delta's planning
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "128",
    # for each file that the usual one writes, Hadoop starts ten processes: readlink, chmod
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    "spark.sql.streaming.minBatchesToRetain": "20",
    # each partition that a query reads has a consumer of its own. Of 64, Spark's own limit, a
    # source of hundreds of tables has each batch connect again for most of its partitions; one
    # that was not read for five minutes is closed in any case
    "spark.kafka.consumer.cache.capacity": "2048",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.stopTimeout": "8s",
    # the driver's metrics and the history of finished work are read by no one
    "spark.sql.ui.retainedExecutions": "5",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.cleaner.periodicGC.interval": "10min",
    # what a worker frees goes back to the system: each would keep its largest batch otherwise
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_ARENA_MAX": "2",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": "1048576",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.autoCompact.enabled": "true",
    "spark.databricks.delta.autoCompact.maxFileSize": "33554432",
    "spark.databricks.delta.properties.defaults.checkpointInterval": "20",
    "spark.databricks.delta.stalenessLimit": "0",
}


_OF_FEW_ROWS: Final = {
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # without code, what occurs twice in a row is looked up in a cache that is emptied at each row
    "spark.sql.subexpressionElimination.enabled": "false",
    # to read a file's dictionaries, so that it need not be read, takes longer than to read it
    "parquet.filter.dictionary.enabled": "false",
}


def start_session(config: JobConfig) -> SparkSession:
    """Starts the driver's JVM, or joins the one that this process has.

    Raises:
        ClusterError: The cluster does not answer, does not take the job, or gives it no executor;
            each has a code of its own.
    """
    for name in _REPEATING:
        logging.getLogger(name).disabled = True
    # Spark's own launcher and its workers are told through the environment, by Spark's design
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYSPARK_PYTHON"] = config.conf.get(_PYTHON, sys.executable)
    if config.java_home is not None:
        os.environ["JAVA_HOME"] = str(config.java_home)
    builder = SparkSession.builder.appName(f"headwater {config.source}").master(config.master)
    for name, value in settings(config).items():
        builder = builder.config(name, value)
    session = _started(builder, config)
    java_classes.remember(session)
    return session


def session_beside(config: JobConfig) -> SparkSession:
    """Starts a driver beside the job's for a command, or joins the process's own.

    The output of its JVM goes to a log, since the command's user has no use for it. An exception
    reports a fault of a query.
    """
    with _heard_in(config.home / "log" / "spark-beside.log"):
        return start_session(config if config.local else replace(config, master=_BESIDE))


@contextmanager
def session_ended(config: JobConfig) -> Iterator[SparkSession]:
    """Starts a driver beside the job's whose JVM ends with the context, however long that takes.

    A JVM that this process already has is joined, and stays.
    """
    joined = SparkContext._active_spark_context is not None  # noqa: SLF001  # of any thread
    session = session_beside(config)
    try:
        yield session
    finally:
        if not joined:
            _end(session)


def _end(session: SparkSession) -> None:
    context: Any = session.sparkContext  # its process has no other name
    gateway = context._gateway  # noqa: SLF001
    session.stop()
    gateway.shutdown()
    type(context)._gateway = type(context)._jvm = None  # noqa: SLF001  # the next begins another
    gateway.proc.stdin.close()
    gateway.proc.wait(_JVM_END_S)


@contextmanager
def _heard_in(log: Path) -> Iterator[None]:
    """Redirects the errors of processes that are started meanwhile to a log, for all their life."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    own = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def _started(builder: SparkSession.Builder, config: JobConfig) -> SparkSession:
    if config.local:
        return builder.getOrCreate()
    cluster.await_master(config.master)
    with cluster.refusals(config.master), cluster.time_limit():
        session = builder.getOrCreate()
    cluster.await_executors(session)
    return session


def settings(config: JobConfig) -> dict[str, str]:
    """Returns Spark's settings for a job; the project's take precedence."""
    conf = {
        "spark.driver.memory": f"{config.driver_memory_mib}m",
        "spark.jars": ",".join(map(str, config.jars)),
        "spark.sql.warehouse.dir": str(config.home / "data" / "spark"),
    }
    if config.code:
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(map(str, config.code))
    archive = class_archive.option(config.java_home)
    if config.local or cluster.near(config.master):
        conf |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
        logged = f'{_EXECUTOR_OPTIONS} "-Dlog4j2.configurationFile={_LOG}"'
        conf["spark.executor.extraJavaOptions"] = f"{logged} {archive}".strip()
    own = f'"-Dlog4j2.configurationFile={_LOG}" "-Djava.io.tmpdir={_scratch().path}"'
    options = f"{JAVA_OPTIONS} {own} {archive}".strip()
    return conf | _CONF | {"spark.driver.extraJavaOptions": options} | dict(config.conf)


@cache
def _scratch() -> Scratch:
    """Returns the folder of shuffle files and jars, which a killed JVM leaves behind."""
    made = Scratch()
    atexit.register(made.close)
    return made


def session_of_batches(session: SparkSession) -> SparkSession:
    """Returns a session of the same driver for frequent queries with few rows.

    Spark generates code for the columns of every task, which for some hundred rows takes longer
    than the rows. Queries over whole tables are up to three times as fast with it, so they stay in
    the given session.
    """
    cloned = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())  # noqa: SLF001
    for name, value in _OF_FEW_ROWS.items():
        cloned.conf.set(name, value)
    return cloned


def hold(session: SparkSession, driver_token: DriverToken) -> Any:
    """Makes the driver's JVM hold its own lock file until it ends.

    Returns:
        The object whose lifetime in this process is that of the lock.

    Raises:
        WriterLockedError: The JVM of another driver holds it.
    """
    jvm: Any = session._jvm  # noqa: SLF001  # Java's locks have no other way from here
    file = jvm.java.io.RandomAccessFile(str(driver_token.jvm_lock), "rw")
    if file.getChannel().tryLock() is None:
        raise WriterLockedError(
            "Spark of another driver is there", detail=str(driver_token.jvm_lock)
        )
    return file
