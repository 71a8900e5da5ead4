"""ActivePlans: the views that a store's batches write; a batch can be the first with another one.

A batch has a version that joins only if the version has everything that lies before the batch. So
it is known where the next batch begins: where the last one that was written has ended.

SentPlans: the views of a store as they go to workers with every batch, and are read once.

A few changes are written in less time than the plans of two hundred views take to be unpickled. So
they travel as the bytes that they were pickled to when their query started, and a worker that has
seen those has the plans.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, overload

from pyspark import cloudpickle

if TYPE_CHECKING:
    from projections.common.offsets import Offsets
    from projections.planning.view_plan import ViewPlan


class ActivePlans:
    """Views of a store; changed and asked for a batch under the store's guard only.

    Args:
        plans: The views with which the store's query begins.
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
            plans: Views that have everything below `stands`.
        """
        self._sent = SentPlans((*plans, *self._sent))


_KEPT_MAX: Final = 8
"""Sets of plans that a worker keeps: one for each store, and those before the last change."""


class SentPlans(Sequence["ViewPlan"]):
    """Plans, pickled once."""

    def __init__(self, plans: Sequence[ViewPlan]) -> None:
        self._plans = tuple(plans)
        # what a project's own module declares is known to no worker by its name
        self._pickled: bytes = cloudpickle.dumps(self._plans)  # type: ignore[no-untyped-call]
        self._digest = hashlib.sha256(self._pickled).digest()

    @overload
    def __getitem__(self, place: int) -> ViewPlan: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[ViewPlan, ...]: ...

    def __getitem__(self, place: int | slice) -> ViewPlan | tuple[ViewPlan, ...]:
        return self._plans[place]

    def __len__(self) -> int:
        return len(self._plans)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self._digest, self._pickled)


_known: OrderedDict[bytes, SentPlans] = OrderedDict()


def _received(digest: bytes, pickled: bytes) -> SentPlans:
    """Returns the plans of some bytes; in a worker, those that it has read before."""
    found = _known.get(digest)
    if found is None:
        found = _known[digest] = SentPlans.__new__(SentPlans)
        found.__dict__.update(
            _plans=pickle.loads(pickled),  # noqa: S301  # from our own driver
            _pickled=pickled,
            _digest=digest,
        )
        while len(_known) > _KEPT_MAX:
            _known.popitem(last=False)
    return found
