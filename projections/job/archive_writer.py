"""Archives a batch in one of Spark's Python workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from projections.archive.table import Archive
from projections.job.task_edge import crossing
from projections.planning.job_spec import writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from projections.archive.table import ArchiveRetention
    from projections.common.driver_lock import DriverToken
    from projections.common.offsets import Offsets

ADDED_DDL: Final = "added long"
_ADDED: Final = pa.schema([("added", pa.int64())])


@dataclass(frozen=True, slots=True)
class Archiver:
    """Adds the records of a batch to the archive.

    Attributes:
        folder: Folder of the archive.
        retention: How long it keeps records.
        ends: Offset after the batch's last record of each partition.
        identities: Kafka's id of each topic.
    """

    folder: Path
    retention: ArchiveRetention
    driver_token: DriverToken | None = None
    ends: Offsets = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Archives all batches of the one task; yields how many records were added."""
        remaining = iter(batches)
        try:
            with writing(self.driver_token):
                added = Archive(self.folder).append(
                    remaining, self.ends, self.identities, self.retention
                )
            # Spark requires that skipped records of a repeated batch are consumed, too
            for _ in remaining:
                pass
        except Exception as error:  # noqa: BLE001  # the edge of the process
            raise crossing(error) from None
        yield pa.RecordBatch.from_pydict({"added": [added]}, schema=_ADDED)
