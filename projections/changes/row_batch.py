"""Rows of a view in document form, in batches of some thousand, without a dict for each row."""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from projections.changes.documents import key_text, text_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from projections.planning.view_plan import ViewPlan

ROWS_AT_ONCE: Final = 5000


class RowPart(NamedTuple):
    """Some rows of a view.

    Attributes:
        names: The view's columns that its source table still has, in their order.
        rows: The values of these columns for each row, in document form.
    """

    names: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]

    def documents(self) -> Iterator[dict[str, Any]]:
        """Yields the rows as documents."""
        for row in self.rows:
            yield dict(zip(self.names, row, strict=True))

    def keys(self, key: Sequence[str]) -> list[str]:
        """Returns the text of each row's key."""
        if len(key) == 1:
            (name,) = key
            values = list(map(itemgetter(self.names.index(name)), self.rows))
            kinds = set(map(type, values))
            if kinds == {int}:  # like most keys; a call for each would be slow
                return list(map(str, values))
            if kinds == {str}:
                return list(map(text_alone, values))
            return [key_text((value,)) for value in values]
        parts = itemgetter(*map(self.names.index, key))
        return [key_text(parts(row)) for row in self.rows]


def source_columns(plan: ViewPlan) -> tuple[str, ...]:
    """Returns the columns of a view that its source table still has, in their order."""
    return tuple(c.name for c in plan.schema.columns if c.name not in plan.absent)


def parts(plan: ViewPlan, documents: Iterable[Mapping[str, object]]) -> Iterator[RowPart]:
    """Yields documents of a view in parts.

    A document may lack a column that was added, without a default, after its row was written.
    """
    names, remaining = source_columns(plan), iter(documents)
    while some := list(islice(remaining, ROWS_AT_ONCE)):
        yield RowPart(names, [tuple(map(document.get, names)) for document in some])
