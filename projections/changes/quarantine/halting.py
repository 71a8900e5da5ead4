"""Halting: a view that has to stand still because of a row is paused, in all its stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from projections.changes.quarantine.table import connect, told_apart
from projections.common.fault import Fault
from projections.planning import view_schemas

if TYPE_CHECKING:
    from projections.errors import ViewHaltedError
    from projections.planning.job_spec import LedgerAddress


def halt(address: LedgerAddress, view: str, error: ViewHaltedError) -> None:
    """Has a view paused until `headwater view resume`; the job binds its views without it.

    That is committed before the batch fails, so a job that is killed meanwhile finds it.

    Raises:
        QuarantineDownError: It cannot be noted.
    """
    with connect(address) as connection, told_apart():
        view_schemas.pause(connection, address.source, view, Fault.of(error))
