"""Retention: rules for archiving and deleting events, per category and age.

- *Closed streams* are compacted: those whose last event is of a closing type and old enough. Their
  originals are in the archive then. Without a fold, the `$snapshot` has no state: a fold of the
  stream reads its originals.
- *Archived originals* are dropped if they are old enough, sealed, and the call allows it. The
  `$snapshot` remains, the seals keep the hashes, and a record says what was dropped.
- *Idempotency keys* are forgotten. A command that is sent again with one is a new command then.

A stream's head never goes, so a version, once given, is never given again.

Originals are dropped from the beginning of a stream on, and only where the `$snapshot` stands
without them: a state that is sealed under persons' keys keeps its originals, because it is
unreadable once one of them is forgotten. After dropping, only the fold that made the `$snapshot`
can read the stream, and readers who replay the log from its beginning miss those events: drop what
no view and no later version of a decider will ask for. What was dropped can be exported before.

Everything is done in bounded transactions; a run that was interrupted is simply run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from eventstore.errors import CompactionError
from eventstore.model.callables import check_kind
from eventstore.model.names import check_category, check_names, check_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventstore.model.event import StoredEvent
    from eventstore.upkeep.compaction import Refusal, StreamFold

    Export = Callable[[Sequence[StoredEvent]], object]
    """Takes events before they are dropped. It may be given the same ones again."""


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """The retention of a category's streams.

    Ages count from the recording time of an event, by the database's clock.

    Attributes:
        category: Of the streams.
        closing: Event types that close a stream.
        compact_closed_after: A stream whose last event is closing, and this old, is compacted.
        drop_archived_after: Archived originals this old are dropped, if the call allows it.
    """

    category: str
    closing: frozenset[str] = frozenset()
    compact_closed_after: timedelta | None = None
    drop_archived_after: timedelta | None = None

    def __post_init__(self) -> None:
        check_category(self.category)
        closing = check_names("the closing types of a retention rule", self.closing, check_type)
        object.__setattr__(self, "closing", closing)
        for age in (self.compact_closed_after, self.drop_archived_after):
            check_age(age)
        if bool(self.closing) != (self.compact_closed_after is not None):
            raise CompactionError(
                "a retention rule needs both the closing types and an age, or neither",
                detail=f"category {self.category}",
            )


def check_age(age: timedelta | None) -> timedelta | None:
    """Returns a valid age.

    Raises:
        WrongKindError: It is not a timedelta.
        CompactionError: It is negative.
    """
    if age is None:
        return None
    check_kind("an age", age, timedelta, "such as timedelta(days=30)")
    if age.total_seconds() < 0:
        raise CompactionError("an age must not be negative", detail=f"{age}")
    return age


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The result of a retention rule.

    Attributes:
        streams: Closed streams that were compacted.
        archived: Their originals that were archived.
        dropped: Archived originals that were dropped.
        droppable: Archived originals that are old enough, but that the call did not allow to drop.
        kept: Streams whose archived originals are old enough but still needed: their state is
            encrypted.
        refused: Streams that could not be processed; all others were.
    """

    streams: int = 0
    archived: int = 0
    dropped: int = 0
    droppable: int = 0
    kept: int = 0
    refused: tuple[Refusal, ...] = ()

    def __add__(self, other: RetentionReport) -> RetentionReport:
        return RetentionReport(
            streams=self.streams + other.streams,
            archived=self.archived + other.archived,
            dropped=self.dropped + other.dropped,
            droppable=self.droppable + other.droppable,
            kept=self.kept + other.kept,
            refused=self.refused + other.refused,
        )


REASON_CHARACTERS: Final = 500


def tomb_of(reason: str) -> bytes:
    """Returns the payload of the `$snapshot` of a deleted stream.

    Raises:
        CompactionError: The reason is missing or too long.
    """
    if type(reason) is not str or not 0 < len(reason.strip()) <= REASON_CHARACTERS:
        raise CompactionError(
            f"a deletion needs a reason of at most {REASON_CHARACTERS} characters"
        )
    return msgspec.json.encode({"fold": "", "state": None, "deleted": reason})


class Retention(Protocol):
    """Applies retention rules. Each call can be repeated, and runs beside writers and readers."""

    def apply(
        self,
        rule: RetentionRule,
        *,
        tenant: str,
        fold: StreamFold | None = None,
        drop_archived: bool = False,
        export: Export | None = None,
    ) -> RetentionReport:
        """Applies a rule for one tenant.

        Args:
            rule: The rule.
            tenant: The tenant of its streams.
            fold: Of closed streams; None leaves their `$snapshot` without a state.
            drop_archived: Whether originals may be dropped; otherwise they are only counted.
            export: Is given what is about to be dropped, stream by stream, in order. If it raises,
                nothing of that is dropped.

        Raises:
            CompactionError: The fold is of another category or tenant.
            WrongKindError: The export is async: nothing would be exported.
        """
        ...

    def delete_stream(self, tenant: str, stream: str, *, reason: str) -> int:
        """Deletes a stream's events permanently, and leaves one `$snapshot` with the reason.

        The stream keeps its version, and cannot be folded any more: a command for it is refused
        with `CompactionError`. The audit still verifies the log. What views, backups and consumers
        have of it is theirs to delete; a call that was interrupted is repeated.

        Args:
            tenant: Whose stream.
            stream: Its name.
            reason: Why, for those who look; without personal data, because it stays.

        Returns:
            How many events.

        Raises:
            CompactionError: There is no such stream or no reason, or it is not sealed yet.
            ContentionError: A writer or an older transaction stays open.
        """
        ...

    def forget_keys(self, older_than: timedelta, *, tenant: str) -> int:
        """Deletes idempotency keys, which belong to no category: one may cover many streams.

        Args:
            older_than: Keys this old; longer than any caller goes on retrying.
            tenant: Whose keys.

        Returns:
            How many.
        """
        ...
