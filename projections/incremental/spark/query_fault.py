"""Why a view cannot be maintained, in words that contain no value of a row."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Final

from pyspark.errors import AnalysisException, PySparkException, PythonException

from projections.common.fault import Fault
from projections.errors import ProjectionError, QueryFailedError, ViewQueryError

_TEXT_MAX: Final = 300
_CONDITION: Final = re.compile(r"(?:Exception|Error): \[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")
_JAVA_CLASS: Final = re.compile(r"\b(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b")
_RAISED: Final = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?:[ \t][^\n]*\n)*(?P<kind>[A-Za-z_][\w.]*)'
)
"""The end of a Python traceback: where an error was raised, and its class."""
_OF_VALUES: Final = "22"
"""Class of SQLSTATE: data exceptions."""
_HINT: Final = "exclude such rows with a condition, or use try_cast, try_divide and their like"


def query_fault(view: str, error: Exception) -> Fault:
    """Returns the error for a view that cannot be maintained."""
    if isinstance(error, ProjectionError):
        return Fault.of(error)
    if isinstance(error, AnalysisException):  # raised before a row was read
        unfit = ViewQueryError(
            f"the query of view {view} no longer fits its inputs",
            detail=str(error).splitlines()[0][:_TEXT_MAX],
            hint="correct the query; until then the view stays at its last boundary",
        )
        return Fault.of(unfit)
    if known := Fault.find(str(error)):
        return known
    hint = None
    if isinstance(error, PySparkException) and (error.getSqlState() or "").startswith(_OF_VALUES):
        hint = _HINT
    return Fault(
        QueryFailedError.code, f"view {view} cannot be kept", without_values(error), hint, True
    )


def without_values(error: Exception) -> str:
    """Describes an error of Spark by its condition and the part of the query, or by its class.

    The texts of Spark and Python are left out: they contain the value that they complain of.
    """
    text = str(error)
    if isinstance(error, PythonException) and (raised := list(_RAISED.finditer(text))):
        last = raised[-1]
        return f"{last['kind']} at {PurePath(last['file']).name}:{last['line']}"
    if isinstance(error, PySparkException) and (condition := error.getCondition()):
        return condition + _place(error)
    found = dict.fromkeys(_CONDITION.findall(text)) or dict.fromkeys(_JAVA_CLASS.findall(text))
    return (", ".join(found) or type(error).__name__)[:_TEXT_MAX]


def _place(error: PySparkException) -> str:
    for context in error.getQueryContext():
        if fragment := " ".join(context.fragment().split()):
            return f" in {fragment[:_TEXT_MAX]}"
    return ""
