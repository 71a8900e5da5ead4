"""Spark's daemon of Python workers, which imports the modules of our tasks before it forks.

Spark forks each worker from a small daemon, and each worker imports its own modules: pandas and the
clients of the stores take three seconds of processor time and 100 MiB in every worker. This daemon
imports them once, and its workers share the pages.

Spark itself loads nothing before the fork, because a library may start threads, which a fork does
not copy. OpenBLAS and the jemalloc of Arrow and of deltalake would; the session's settings prevent
that, so the daemon has one thread when it forks.

Spark also puts archives of its own, with the same Python code, before the installed packages. They
hold no compiled code, and each worker reads the lists of their files again. Where Spark is the
installed package, the daemon imports that.
"""

from __future__ import annotations

import gc
import importlib
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOADED: Final = (
    "pyspark.worker",
    "projections.incremental.spark.maintainer",
    "projections.job.tasks.derived_stores",
    "projections.job.streaming_query",
    "projections.stores.valkey.sink",
    "projections.stores.opensearch.sink",
    "projections.stores.delta.sink",
)
_ARCHIVES: Final = (".zip", ".jar")


def without_archives(path: Sequence[str]) -> list[str]:
    """Returns where to import from, without the archives that the installed `pyspark` has in it.

    A Spark of its own folder keeps its archives: its version may be another one.
    """
    others = [place for place in path if not place.endswith(_ARCHIVES)]
    found = PathFinder.find_spec("pyspark", others)
    if found is None or found.origin is None or PathFinder.find_spec("py4j", others) is None:
        return list(path)
    spark = Path(found.origin).resolve().parent
    return [p for p in path if not p.endswith(_ARCHIVES) or spark not in Path(p).resolve().parents]


def load() -> None:
    """Imports the modules of tasks, with one thread, and excludes them from garbage collection."""
    for module in _LOADED:
        importlib.import_module(module)
    # the collector would write into each page that it looks at, and the worker get its own copy
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()  # each worker would read again what archives are still in it
    load()
    importlib.import_module("pyspark.daemon").manager()
