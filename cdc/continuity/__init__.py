"""Decides whether a capture can continue where it stopped, names what is missing, and repairs it.

Debezium 3.7 resumes silently after its slot was moved forward, regardless of its
`offset.mismatch.strategy`; Postgres 18 only warns about a missing publication; Connect starts a
connector by itself, without any check. Each of them can lose changes. A connector may therefore
stream only from a slot that was compared with what Kafka has. If completeness cannot be proved, the
capture is refused with an error code that names what is missing and the command that repairs it.
"""

from cdc.continuity.errors import ContinuityError
from cdc.continuity.evidence import Loss
from cdc.continuity.guard import Guard, await_streaming
from cdc.continuity.repair import RepairPlan, begin, repair
from cdc.continuity.repair import plan as plan_repair
from cdc.continuity.start import (
    admit,
    as_captured,
    find_loss,
    find_loss_at_source,
    raised_by_hand,
    refuse,
    refuse_lack_of_tables,
)

__all__ = [
    "ContinuityError",
    "Guard",
    "Loss",
    "RepairPlan",
    "admit",
    "as_captured",
    "await_streaming",
    "begin",
    "find_loss",
    "find_loss_at_source",
    "plan_repair",
    "raised_by_hand",
    "refuse",
    "refuse_lack_of_tables",
    "repair",
]
