"""Whether a capture can go on where it stopped, what is missing if not, and its repair.

Debezium 3.7 resumes in silence after its slot was moved forward, whatever its
`offset.mismatch.strategy`; Postgres 18 passes over a missing publication with a warning; Connect
starts a connector by itself, a caller that has looked. All of them lose changes. So a connector
streams only from a slot that was compared with what Kafka has, and what cannot be shown to be whole
is refused with a code that says what is missing and the one command that repairs it.
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
