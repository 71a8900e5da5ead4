"""Recovery of the cache's views: those that the cache has lost, or laid out in another way.

They are treated as views that come late: their tables are read anew as a whole, and until that read
is in them they claim no position. What the cache still has stays readable meanwhile; what is gone
at the source leaves it once the read has come, by the sweep that follows every whole read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from cdc.postgres import session
from projections.definition.views import Store
from projections.errors import SinkError
from projections.job import backfill
from projections.publishing import positions
from projections.stores.valkey.epoch import CacheEpoch
from projections.stores.valkey.sink import CacheSink

if TYPE_CHECKING:
    from projections.planning.job_spec import JobSpec

_log = structlog.get_logger(__name__)


def epoch_of(spec: JobSpec) -> CacheEpoch:
    """Returns the memory of a job's cache, which lies beside the query's checkpoint."""
    file = spec.checkpoint(Store.CACHE).with_suffix(".epoch")
    return CacheEpoch(spec.cache_url, spec.addresses.cache_prefix, file)


def recovered(spec: JobSpec, epoch: CacheEpoch) -> JobSpec:
    """Has those views read anew that need it; a cache that does not answer is looked at later.

    Every step may be taken again: the memory of the cache is renewed last.

    Raises:
        CdcError: The source does not answer.
    """
    plans = spec.plans_in(Store.CACHE)
    if not plans:
        return spec
    try:
        reason = epoch.look()
        again = list(plans) if reason else epoch.reformed(plans)
        if not again:
            return spec
        _log.warning(
            "views of the cache are read anew",
            views=[plan.name for plan in again],
            why=reason or "they are laid out in another way",
        )
        names = [plan.name for plan in again]
        with session.connect(spec.source_dsn) as connection:
            positions.withdraw(connection, names, Store.CACHE)
        backfill.forget(spec, Store.CACHE, names)
        if reason:
            epoch.renew(again)
        else:
            epoch.mark(again)
            _rid(spec)
    except SinkError as error:
        epoch.lost.clear()  # whoever reaches it next finds the same
        _log.warning("the cache is not looked at yet", code=error.code, what=error.message)
    return spec


def _rid(spec: JobSpec) -> None:
    """Removes what lies beside the rows of views that have nothing there any more."""
    sink = CacheSink(spec.addresses.cache_url, spec.addresses.cache_prefix)
    try:
        for plan in spec.plans_in(Store.CACHE):
            if not plan.cache.linked:
                sink.drop_beside(plan)
    finally:
        sink.close()
