"""Rules for columns in the connector: a class of ours hashes and masks, Debezium leaves out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc.connect import secrets

if TYPE_CHECKING:
    from cdc.capture import CaptureSpec

CLASS: Final = "headwater.connect.v1.ColumnRules"
NAME: Final = "rules"
"""Its name among the converters; it is asked before the one for exact values."""


def properties(spec: CaptureSpec, converters: str) -> dict[str, str]:
    """Returns the properties that put the class to work; none where no column is treated.

    Args:
        spec: What is captured.
        converters: Names of the other converters, as the property `converters` has them.
    """
    places = [
        (table.unquoted, column, treatment)
        for table, rules in sorted(spec.columns.items())
        for column, treatment in rules.treated.items()
    ]
    if not places:
        return {}
    found = {"converters": f"{NAME},{converters}", f"{NAME}.type": CLASS}
    if spec.salt is not None:
        # a property of this name is masked in every log
        found[f"{NAME}.salt.secret"] = secrets.reference(spec, secrets.SALT, spec.salt)
    for number, (table, column, treatment) in enumerate(places):
        found[f"{NAME}.{number}.of"] = table
        found[f"{NAME}.{number}.column"] = column
        found[f"{NAME}.{number}.form"] = str(treatment)
    return found
