"""`python -m benchmarks [name ...] [--json] [--quick]`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from benchmarks import (
    append,
    backlog,
    cache_sink,
    catch_up,
    decode,
    drain,
    driver_memory,
    freshness,
    initial_load,
    join_state,
    large_merge,
    latency,
    live,
    many_tables,
    patterns,
    reactor_rebuild,
    rebuild,
    rebuild_cluster,
    rebuild_live,
    rebuild_scale,
    rebuild_spark,
    scd1,
    scd2,
    search_sink,
    snapshot,
    standing_queries,
    startup,
    stream_join,
    table_features,
    verify,
    wide_source,
    window_live,
    window_state,
    windows,
)
from headwater.logging import configure

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.result import Report

BENCHMARKS: Final[dict[str, Callable[[bool], Report]]] = {
    "append": append.run,
    "backlog": backlog.run,
    "cache_sink": cache_sink.run,
    "catch_up": catch_up.run,
    "decode": decode.run,
    "drain": drain.run,
    "driver_memory": driver_memory.run,
    "freshness": freshness.run,
    "initial_load": initial_load.run,
    "join_state": join_state.run,
    "large_merge": large_merge.run,
    "latency": latency.run,
    "live": live.run,
    "many_tables": many_tables.run,
    "patterns": patterns.run,
    "reactor_rebuild": reactor_rebuild.run,
    "rebuild": rebuild.run,
    "rebuild_cluster": rebuild_cluster.run,
    "rebuild_live": rebuild_live.run,
    "rebuild_scale": rebuild_scale.run,
    "rebuild_spark": rebuild_spark.run,
    "scd1": scd1.run,
    "scd2": scd2.run,
    "search_sink": search_sink.run,
    "snapshot": snapshot.run,
    "standing_queries": standing_queries.run,
    "startup": startup.run,
    "table_features": table_features.run,
    "verify": verify.run,
    "wide_source": wide_source.run,
    "window_live": window_live.run,
    "window_state": window_state.run,
    "stream_join": stream_join.run,
    "windows": windows.run,
}

_EXIT_WRONG: Final = 1
_EXIT_MISSED: Final = 3


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmarks that are named, or all; returns the exit code.

    Returns:
        0 if every result is right and every target holds, 1 if a result is wrong, 3 if a target
        is missed.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="less work, the same checks")
    options = parser.parse_args(arguments)
    configure(verbose=False)  # to stderr: stdout is for the answer
    unknown = sorted(set(options.names) - BENCHMARKS.keys())
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    reports = [BENCHMARKS[name](options.quick) for name in options.names or BENCHMARKS]
    if options.json:
        documents = [asdict(report) for report in reports]
        print(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
    else:
        for report in reports:
            _show(report)
    if not all(report.checked for report in reports):
        return _EXIT_WRONG
    held = all(measure.holds for report in reports for measure in report.results)
    return 0 if held else _EXIT_MISSED


def _show(report: Report) -> None:
    print(f"{report.benchmark}: results {'right' if report.checked else 'WRONG'}")
    for found in report.results:
        verdict = "holds" if found.holds else "MISSED"
        if found.peer is None or found.ratio is None:
            print(f"  {found.metric}: {found.ours:,.2f}, target {found.target:g}: {verdict}")
            continue
        limit = f", limit {found.limit:,.2f}" if found.limit is not None else ""
        print(
            f"  {found.metric}: ours {found.ours:,.2f}, peer {found.peer:,.2f}{limit}; "
            f"ratio {found.ratio:.3f}, target {found.target:g}: {verdict}"
        )


if __name__ == "__main__":
    sys.exit(main())
