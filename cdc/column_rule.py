"""ColumnRules: which columns of a table leave the source, and in which form.

Everything that carries rows uses this one definition: the stream (`cdc.connect.connector`,
`cdc.connect.column_rules`), snapshots and the comparison with the source (`Column.treatment`,
`cdc.postgres.treatment`), and the schema of views (`ColumnRules.applied`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cdc.errors import ColumnRuleError
from cdc.table import ColumnKind, TableSchema, Treatment
from foundation.arguments import typed_arguments

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cdc.table import TableName

SALT_LENGTH_MIN: Final = 16
"""A shorter salt can be guessed, and with it the hidden values."""

_MASK_LENGTH_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, init=False)
class ColumnRules:
    """Rules for the columns of one table. Key columns cannot have rules.

    Attributes:
        only: The only columns to send, besides hashed and masked ones; later columns are excluded
            too. None for all.
        exclude: Columns to exclude.
        hash: Columns sent as the salted SHA-256 of each value, in hexadecimal: equal values stay
            equal, and NULL stays NULL.
        mask: Columns replaced by a number of asterisks; NULL stays NULL.
    """

    only: frozenset[str] | None
    exclude: frozenset[str]
    hash: frozenset[str]
    mask: Mapping[str, int] = field(hash=False)

    @typed_arguments(ColumnRuleError)
    def __init__(
        self,
        *,
        only: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        hash: Iterable[str] = (),  # noqa: A002  # the word for it
        mask: Mapping[str, int] | None = None,
    ) -> None:
        """Declares rules.

        Raises:
            ColumnRuleError: They contradict each other.
        """
        values = {
            "only": None if only is None else frozenset(only),
            "exclude": frozenset(exclude),
            "hash": frozenset(hash),
            "mask": dict(mask or {}),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._refuse_contradictions()

    def treatment(self, column: str) -> Treatment | None:
        """Returns what is sent instead of a column's values; None if they are sent unchanged."""
        if column in self.hash:
            return Treatment()
        return Treatment(self.mask[column]) if column in self.mask else None

    def takes(self, column: str) -> bool:
        """Returns whether a column is sent, in any form."""
        if self.only is None:
            return column not in self.exclude
        return column in self.only or self.treatment(column) is not None

    @property
    def treated(self) -> dict[str, Treatment]:
        """Returns the columns that are hashed or masked, by name."""
        names = sorted({*self.hash, *self.mask})
        return {name: Treatment(self.mask.get(name)) for name in names}

    def applied(self, schema: TableSchema) -> TableSchema:
        """Returns a table as it leaves the source: hashed and masked columns are text.

        Raises:
            ColumnRuleError: A key column has a rule, so that keys could not be compared.
        """
        for name in schema.key:
            if not self.takes(name) or self.treatment(name) is not None:
                raise ColumnRuleError(
                    f"column {name} of the key of {schema.table} cannot be hidden",
                    hint="the key identifies rows; hide other columns, or leave out the table",
                )
        columns = []
        for column in schema.columns:
            treatment = self.treatment(column.name)
            if treatment is not None:
                columns.append(
                    replace(
                        column,
                        kind=ColumnKind.TEXT,
                        type_name="text",
                        precision=None,
                        scale=None,
                        treatment=treatment,
                    )
                )
            elif self.takes(column.name):
                columns.append(column)
        return TableSchema(schema.table, tuple(columns), schema.key)

    def unknown(self, schema: TableSchema) -> list[str]:
        """Returns the columns with a rule that the table does not have, such as misspelt ones."""
        named = self.exclude | self.hash | self.mask.keys()
        return sorted(named - schema.by_name.keys())

    def _refuse_contradictions(self) -> None:
        taken: set[str] = set()
        for names in (self.only or frozenset(), self.exclude, self.hash, self.mask.keys()):
            if twice := taken & set(names):
                raise ColumnRuleError(f"column {min(twice)} has two rules")
            taken |= set(names)
        if self.only is not None and self.exclude:
            raise ColumnRuleError(
                "columns are either allowed or excluded",
                hint=("columns that `only` does not list are excluded"),
            )
        for name, length in self.mask.items():
            if not 1 <= length <= _MASK_LENGTH_MAX:
                raise ColumnRuleError(
                    f"the mask of column {name} must have 1 to {_MASK_LENGTH_MAX} characters"
                )


@dataclass(frozen=True, slots=True)
class Hiding:
    """The column rules of a source.

    Attributes:
        rules: Rules by table.
        salt: Salt for hashed columns.
    """

    rules: Mapping[TableName, ColumnRules] = field(default_factory=dict)
    salt: str | None = field(default=None, repr=False)


NOTHING_HIDDEN: Final = Hiding()


def applied(
    schemas: Mapping[TableName, TableSchema], rules: Mapping[TableName, ColumnRules]
) -> dict[TableName, TableSchema]:
    """Returns tables as they leave the source; see `ColumnRules.applied`."""
    return {
        table: rules[table].applied(schema) if table in rules else schema
        for table, schema in schemas.items()
    }


def treated(treatment: Treatment, text: str, salt: str) -> str:
    """Returns what is sent instead of a value that Postgres prints as this text."""
    if treatment.mask_length is not None:
        return "*" * treatment.mask_length
    return hashlib.sha256((salt + text).encode()).hexdigest()


def refuse_weak_salt(salt: str | None, rules: Iterable[ColumnRules]) -> None:
    """Refuses hashed columns without a sufficient salt.

    Raises:
        ColumnRuleError: There is no salt, or it is too short.
    """
    if any(rule.hash for rule in rules) and len(salt or "") < SALT_LENGTH_MIN:
        raise ColumnRuleError(
            "columns are hashed, and no salt is set"
            if not salt
            else f"the salt has less than {SALT_LENGTH_MIN} characters",
            hint='salt = "${HEADWATER_SALT}" in the section of the source, and the secret in .env',
        )
