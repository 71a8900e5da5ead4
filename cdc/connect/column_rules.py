"""Column rules in the connector: our class hashes and masks columns, Debezium excludes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc.connect import secrets

if TYPE_CHECKING:
    from cdc.capture import CaptureSpec

CLASS: Final = "headwater.connect.v1.ColumnRules"
NAME: Final = "rules"
"""Its name among the converters; it precedes the converter for exact values."""


def properties(spec: CaptureSpec, converters: str) -> dict[str, str]:
    """Returns the properties that enable the class; none if no column is hashed or masked.

    Args:
        spec: The capture.
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
