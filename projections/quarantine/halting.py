"""Halting: a view that has to stand still because of a row is paused, in all its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections import view_shapes
from projections.fault import Fault
from projections.quarantine.ledger import connect, told_apart

if TYPE_CHECKING:
    from projections.errors import ViewHaltedError
    from projections.spec import LedgerAddress


def halt(address: LedgerAddress, view: str, error: ViewHaltedError) -> None:
    """Has a view paused until `headwater view resume`; the job binds its views without it.

    That is committed before the batch fails, so a job that is killed meanwhile finds it.

    Raises:
        QuarantineDownError: It cannot be noted.
    """
    with connect(address) as connection, told_apart():
        view_shapes.pause(connection, address.source, view, Fault.of(error))
