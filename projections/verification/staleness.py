"""Determines which differing rows are stale: the log has a newer change than the store.

The others were altered in the store itself. The archive is searched for a bounded number of rows; a
row whose newest change is not archived yet is reported as different.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cdc.lsn import Lsn
from cdc.position import ChangePosition
from cdc.table import ColumnKind
from projections.archive.scan import ArchiveScan
from projections.changes.documents import key_values
from projections.errors import ArchiveMissingError
from projections.verification.report import EXAMPLES, KeyVerdict, ViewReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from projections.planning.job_config import JobConfig
    from projections.planning.job_spec import JobSpec
    from projections.planning.view_plan import ViewPlan

KEYS_MAX: Final = 1_000
"""Most rows of a view to look up."""

# Keys of these kinds have the same form in records and documents.
_ALIKE: Final = (
    *(ColumnKind.BOOLEAN, ColumnKind.INTEGER, ColumnKind.NUMERIC),
    *(ColumnKind.TEXT, ColumnKind.UUID, ColumnKind.DATE),
)


def with_staleness(spec: JobSpec, reports: Sequence[ViewReport]) -> list[ViewReport]:
    """Returns reports that distinguish stale rows from other different ones."""
    plans = {plan.name: plan for plan in spec.plans}
    return [
        _with_stale_rows(spec.config, plans[report.view], report)
        if report.different and report.view in plans
        else report
        for report in reports
    ]


def _with_stale_rows(config: JobConfig, plan: ViewPlan, report: ViewReport) -> ViewReport:
    differing = [each for each in report.findings if each.verdict is KeyVerdict.DIFFERENT]
    newest = _newest(config, plan, [each.key for each in differing[:KEYS_MAX]])
    findings = tuple(
        each._replace(verdict=KeyVerdict.STALE)
        if each.verdict is KeyVerdict.DIFFERENT and newest.get(each.key, 0) > each.version
        else each
        for each in report.findings
    )
    counts = Counter[KeyVerdict](each.verdict for each in findings)
    beside = report.examples[len(report.findings[:EXAMPLES]) :]
    examples = (*map(str, findings[:EXAMPLES]), *beside)
    return replace(report, findings=findings, examples=examples, stale=counts[KeyVerdict.STALE])


def _newest(config: JobConfig, plan: ViewPlan, keys: Sequence[str]) -> Mapping[str, int]:
    """Returns the versions of the newest archived changes of some keys."""
    columns = [plan.schema.by_name[name] for name in plan.keys if name in plan.schema.by_name]
    if plan.events is not None or not keys or any(c.kind not in _ALIKE for c in columns):
        return {}
    names = [plan.renamed.get(name, name) for name in plan.keys]
    recorded = {
        orjson.dumps(dict(zip(names, key_values(key, columns), strict=True))).decode(): key
        for key in keys
    }
    wanted = pa.array(list(recorded), pa.string())
    versions: dict[str, int] = defaultdict(int)
    try:
        for batch in ArchiveScan(config.archive, plan.topics).records(("key", "epoch", "lsn")):
            own = pc.fill_null(pc.is_in(batch.column("key"), wanted), False)
            for row in batch.filter(own).to_pylist():
                if row["epoch"] is not None and row["lsn"] is not None:
                    key = recorded[row["key"]]
                    version = ChangePosition.of_read(row["epoch"], Lsn(row["lsn"])).version
                    versions[key] = max(versions[key], version)
    except (ArchiveMissingError, OSError):
        return {}
    return versions
