"""Spark's daemon of Python workers, which imports the modules of our tasks before it forks.

Spark forks each worker from a small daemon, and each worker imports its own modules: pandas and the
clients of the stores take three seconds of processor time and 100 MiB in every worker. This daemon
imports them once, and its workers share the pages.

Spark itself loads nothing before the fork, because a library may start threads, which a fork does
not copy. OpenBLAS and the jemalloc of Arrow and of deltalake would; the session's settings prevent
that, so the daemon has one thread when it forks.
"""

from __future__ import annotations

import gc
import importlib
from typing import Final

from pyspark import daemon

_LOADED: Final = (
    "pyspark.worker",
    "projections.incremental.spark.maintainer",
    "projections.job.tasks.derived_stores",
    "projections.job.streaming_query",
    "projections.stores.valkey.sink",
    "projections.stores.opensearch.sink",
    "projections.stores.delta.sink",
)


def load() -> None:
    """Imports the modules of tasks, with one thread, and excludes them from garbage collection."""
    for module in _LOADED:
        importlib.import_module(module)
    # the collector would write into each page that it looks at, and the worker get its own copy
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load()
    daemon.manager()
