"""Errors of the streaming job and its Spark cluster."""

from __future__ import annotations

from projections.errors.base import ProjectionError


class JobError(ProjectionError):
    """The streaming job refuses to continue."""

    code = "HW-P020"


class TruncateError(JobError):
    """A table of events was truncated; a view of events does not follow that."""

    code = "HW-P021"


class KeylessChangeError(JobError):
    """A table without a key was updated or deleted from; its view follows only inserts.

    Attributes:
        version: Log position of the change; None if it is not known.
    """

    code = "HW-P022"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        version: int | None = None,
    ) -> None:
        super().__init__(message, detail=detail, hint=hint)
        self.version = version


class TopicsMissingError(JobError):
    """A topic that the views read did not appear in time."""

    code = "HW-P023"
    retriable = True


class QueryFailedError(JobError):
    """A streaming query failed repeatedly, for a cause without a code of its own."""

    code = "HW-P025"
    retriable = True


class AttendantFailedError(JobError):
    """A background task of the job failed, for a cause without a code of its own.

    It is restarted; when it fails again and again the job ends.
    """

    code = "HW-P029"
    retriable = True


class BacklogSpaceError(JobError):
    """The disk with the tables, or a quota on it, is full: a large batch could not be read."""

    code = "HW-P159"
    retriable = True


class RecordOrderError(JobError):
    """A batch's records of a Kafka partition did not come in the order of their offsets."""

    code = "HW-P160"
    retriable = True


class SparkEndedError(JobError):
    """The driver's JVM ended unexpectedly; the job can be restarted."""

    code = "HW-P026"
    retriable = True


class EventUnreadableError(JobError):
    """An event of a view's types cannot be read: a later version, a gap in the upcasters.

    Views never pass over an event; the detail names the event store's own code.
    """

    code = "HW-P027"


class RecordsLostError(JobError):
    """A query's next records are lost: the topic has deleted them, or was recreated.

    The detail names topic, partition and both offsets; starting the query again does not help.
    """

    code = "HW-P028"


class CheckpointForeignError(JobError):
    """A checkpoint belongs to another query, source or home folder.

    What its query had never had would be passed over, so it is not used.
    """

    code = "HW-P110"


class CheckpointTornError(JobError):
    """A checkpoint is damaged beyond every readable batch, and the topics have deleted records.

    Where the topics have all their records yet, the query takes them again from the first.
    """

    code = "HW-P111"


class ClusterError(JobError):
    """The Spark cluster cannot run the job; the detail is Spark's own message."""

    code = "HW-P100"
    retriable = True


class MasterUnreachableError(ClusterError):
    """No Spark master answers at the address in `spark.master`."""

    code = "HW-P101"


class NoExecutorsError(ClusterError):
    """The cluster provides no executor: it has no worker with free capacity."""

    code = "HW-P102"


class FolderNotSharedError(ClusterError):
    """An executor cannot see or write the driver's home folder.

    Tables, archive and checkpoints lie in it, so all machines of a cluster need it under one path.
    """

    code = "HW-P103"
    retriable = False


class BatchSupersededError(ClusterError):
    """A task belongs to an abandoned batch: a later batch of the tables has begun."""

    code = "HW-P104"
