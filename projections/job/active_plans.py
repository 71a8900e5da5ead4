"""Intake: the views that the batches of a store have, of which there may be more from one batch on.

A batch has a version that joins only if the version has everything that lies before the batch. So
it is known where the next batch begins: where the last one that was written has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.job.sent_plans import SentPlans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan


class Intake:
    """Views of a store; changed and asked for a batch under the store's guard only.

    Args:
        plans: Those that the store's query begins with.
    """

    def __init__(self, plans: Sequence[ViewPlan]) -> None:
        self._sent = SentPlans(plans)
        self._stands: Offsets = {}

    @property
    def sent(self) -> SentPlans:
        """The views, as a batch sends them to workers."""
        return self._sent

    @property
    def plans(self) -> tuple[ViewPlan, ...]:
        """The views."""
        return tuple(self._sent)

    @property
    def stands(self) -> Offsets:
        """Offset after the last record of each partition that was written; empty before a batch.

        No batch begins beyond it, as one that failed begins where it began before.
        """
        return self._stands

    def written(self, ends: Offsets) -> None:
        """Notes where a batch has ended that is in the store."""
        self._stands = ends

    def add(self, plans: Sequence[ViewPlan]) -> None:
        """Has the batches that follow take further views, before all others.

        Readers that are moved to another version so find it no older than what they leave.

        Args:
            plans: They have everything below `stands`.
        """
        self._sent = SentPlans((*plans, *self._sent))
