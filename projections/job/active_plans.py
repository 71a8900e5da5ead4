"""ActivePlans: the views that a store's batches write; views can be added between two batches.

A batch may include an adopted version only if the version has every record before the batch. The
start of the next batch must therefore be known: it is the end of the last written batch.

SentPlans: the views of a store as sent to workers with every batch, and unpickled once.

Unpickling the plans of two hundred views takes longer than writing a few changes. The plans are
therefore pickled once when their query starts, and a worker that has unpickled those bytes before
reuses the result.
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
    """Views of a store; changed, and read for a batch, only under the store's guard.

    Args:
        plans: The views with which the store's query begins.
    """

    def __init__(self, plans: Sequence[ViewPlan]) -> None:
        self._sent = SentPlans(plans)
        self._stands: Offsets = {}

    @property
    def sent(self) -> SentPlans:
        """The views in the form that batches send to workers."""
        return self._sent

    @property
    def plans(self) -> tuple[ViewPlan, ...]:
        """The views."""
        return tuple(self._sent)

    @property
    def stands(self) -> Offsets:
        """Offset after the last written record of each partition; empty before the first batch.

        No batch begins beyond it, because a failed batch is repeated from its start.
        """
        return self._stands

    def written(self, ends: Offsets) -> None:
        """Records the end of a batch that is in the store."""
        self._stands = ends

    def add(self, plans: Sequence[ViewPlan]) -> None:
        """Adds views to the following batches, before all others.

        Readers that switch to another version therefore find it no older than the former one.

        Args:
            plans: Views that have everything below `stands`.
        """
        self._sent = SentPlans((*plans, *self._sent))


_KEPT_MAX: Final = 8
"""Most sets of plans that a worker keeps: one for each store, and those before a change."""


class SentPlans(Sequence["ViewPlan"]):
    """Plans, pickled once."""

    def __init__(self, plans: Sequence[ViewPlan]) -> None:
        self._plans = tuple(plans)
        # by value, because workers cannot import the project's own module
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
    """Unpickles plans, unless this worker has unpickled the same bytes before."""
    received = _known.get(digest)
    if received is None:
        received = _known[digest] = SentPlans.__new__(SentPlans)
        received.__dict__.update(
            _plans=pickle.loads(pickled),  # noqa: S301  # from our own driver
            _pickled=pickled,
            _digest=digest,
        )
        while len(_known) > _KEPT_MAX:
            _known.popitem(last=False)
    return received
