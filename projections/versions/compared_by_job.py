"""Versions compared by the job: its Spark finds out whether two large tables have the same rows.

That is usually so before a cutover. If rows differ, or the job does not do it, the caller reads the
tables itself and shows the differences.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog

from projections.errors import ReplayError, WriterLockedError
from projections.stores.delta.table_stats import rows_at
from projections.versions.bulk_requests import BulkRequests, BulkVersions, compared_place
from projections.versions.job_engine import answered

if TYPE_CHECKING:
    from projections.planning.job_config import JobConfig
    from projections.stores.delta.table_diff import EqualRows
    from projections.versions.version_pair import VersionPair

_log = structlog.get_logger(__name__)


def equal_by_job(
    config: JobConfig, pair: VersionPair, table_versions: tuple[int, int]
) -> EqualRows | None:
    """Returns what has the job compare the tables of two versions; None if it is no faster.

    Args:
        config: The job's configuration.
        pair: The versions.
        table_versions: The versions of their tables.

    Raises:
        SinkUnavailableError: A table cannot be read.
    """
    names = pair.old.name, pair.new.name
    requests = BulkRequests(config)
    if not requests.comparing():
        return None
    rows = sum(
        rows_at(config.addresses.tables, name, version)
        for name, version in zip(names, table_versions, strict=True)
    )
    if rows < config.rebuild_rows_min:
        return None

    def equal(keys: tuple[str, ...], columns: tuple[str, ...]) -> Counter[str] | None:
        place = compared_place(pair.new.name)
        work = BulkVersions(pair, table_versions, keys, columns, rows)
        try:
            with answered(requests, place, work) as answer:
                return None if answer.differing else Counter(answer.excluded)
        except (ReplayError, WriterLockedError) as error:
            _log.info("versions are compared without the job", code=error.code, why=error.detail)
            return None

    return equal
