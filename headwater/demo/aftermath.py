"""After the traffic: corrupts a view, detects and repairs it, and erases a person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
import redis

from cdc.table import TableName
from headwater.demo.errors import AftermathError
from headwater.demo.result import ErasureResult, RepairedDamage
from headwater.operations.erase_rows import RowErasure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.demo.reader import ViewEndpoints
    from headwater.demo.workload import Person
    from headwater.platform.platform import Platform

_PAGE: Final = 1_000
_APPLIED_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class PostTrafficChecks:
    """The steps on a person's row after the traffic.

    Attributes:
        platform: The platform.
        person: The person's row.
        places: Addresses of the stores.
        say: Reports each step.
    """

    platform: Platform
    person: Person
    places: ViewEndpoints
    say: Callable[[str], None]

    def mend(self) -> RepairedDamage:
        """Corrupts a value in the cache, verifies, repairs and verifies again.

        Raises:
            AftermathError: No row could be damaged, or the verification did not find exactly the
                damaged row.
        """
        view = self.person.view
        key = self._flip_a_byte()
        self.say(f"[yellow]damage[/]   one byte of a row of {view} is flipped in the cache")
        reports = self.platform.views.verify([view])
        wrong = [report for report in reports if not report.equal]
        if [(r.different, str(r.store), len(r.findings)) for r in wrong] != [(1, "cache", 1)]:
            raise AftermathError("verification did not find exactly the damaged row")
        if wrong[0].findings[0].key != key:
            raise AftermathError("verification found another row than the damaged one")
        self.platform.views.repair(wrong, lambda _: None)
        left = sum(not report.equal for report in self.platform.views.verify([view]))
        self.say("[yellow]mended[/]   found by its key and column, read again, and equal again")
        return RepairedDamage(view, "cache", len(wrong[0].findings), left)

    def forget(self) -> ErasureResult:
        """Overwrites a person's row in the source and erases its earlier values everywhere.

        Raises:
            ForgettingRefusedError: The erasure is not possible now.
        """
        person = self.person
        with psycopg.connect(self.platform.source_dsn, autocommit=True) as connection:
            key = _one(connection.execute(person.choose.encode()).fetchone())
            connection.execute(person.overwrite.encode(), [key])
        self.say(f"[yellow]forget[/]   a person of {person.table}, whose row is overwritten")
        self.platform.await_applied(self.platform.current_lsn(), _APPLIED_S)
        forgetting = RowErasure(self.platform, TableName.parse(person.table))
        certificate, _ = forgetting.forget([str(key)], row_stays=True)
        found = ErasureResult(
            person.table,
            sum(each.count for each in certificate.erased if each.place == "archive"),
            certificate.files_searched,
            certificate.values_searched,
            len(certificate.found_in),
            certificate.complete,
            tuple(each.place for each in certificate.erased if not each.complete),
        )
        self.say(
            f"[yellow]forgotten[/] {found.files:,} files searched for {found.values} values that"
            f" only this person had: found in {found.found_in or 'none'}"
        )
        return found

    def _flip_a_byte(self) -> str:
        """Changes one letter of one row's value in the cache; returns the row's key."""
        begin = f"{self.places.cache_prefix}{self.person.view}:"
        name = f'"{self.person.column}":"'.encode()
        with redis.Redis.from_url(self.places.cache_url) as client:
            keys: Sequence[Any] = sorted(client.scan_iter(f"{begin}*", count=_PAGE))
            for key in keys:
                value: Any = client.get(key)
                at = value.find(name) + len(name)
                if at >= len(name) and value[at : at + 1].isalpha():
                    flipped = bytes([value[at] ^ 1])
                    client.set(key, value[:at] + flipped + value[at + 1 :], keepttl=True)
                    return str(key.decode()).removeprefix(begin)
        raise AftermathError(f"no row of {self.person.view} has a letter in {self.person.column}")


def _one(row: tuple[Any, ...] | None) -> Any:
    if row is None:
        raise AftermathError("there is no person to forget")
    return row[0]
