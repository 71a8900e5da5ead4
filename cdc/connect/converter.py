"""The converter: a class of ours inside the connector that sends every value as Postgres prints it.

Debezium parses many values before anybody sees them, and not every one survives that.
`java/ExactValues.java` keeps them text; the jar is built from it by
`python setup/converter.py`, and its manifest names the source that it was built from.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cdc.connect.errors import ConverterMissingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdc.table import TableName

CLASS: Final = "headwater.connect.v1.ExactValues"
"""Its package has the version of the forms in which it sends values."""

TOPIC_NAMES: Final = "headwater.connect.v1.TopicNames"
"""The class that names topics of tables that Debezium would not tell apart."""

_FOLDER: Final = Path(__file__).resolve().parent / "java"
SOURCE: Final = _FOLDER / "ExactValues.java"
CONVERTERS: Final = (_FOLDER / "ColumnRules.java", SOURCE)
SOURCES: Final = (*CONVERTERS, _FOLDER / "TopicNames.java")
"""What the jar is built from: the converter, what keeps columns to itself, what names topics."""

JAR: Final = _FOLDER / "headwater-exact-values.jar"
"""What a worker needs on its class path, or in the folder of Debezium's plugin."""


def properties(bytes_of: TableName | None = None) -> dict[str, str]:
    """Returns the connector's properties that put the class to work.

    Args:
        bytes_of: A table whose `bytea` columns stay bytes, for what reads them in the connector.
    """
    return {
        **({} if bytes_of is None else {"exact.bytes.of": bytes_of.unquoted}),
        "converters": "exact",
        "exact.type": CLASS,
        # Names of types are learned over connections; it changes them on the way.
        "database.connection.factory.class": CLASS,
    }


def probe(class_name: str) -> dict[str, str]:
    """Returns a configuration that says, when a worker validates it, whether it has a class.

    The worker looks for the class before it connects to a database, and so asks none if the class
    is missing. A class that makes no connections is refused in other words than a missing one.
    """
    return {
        "name": "headwater-converter",
        "topic.prefix": "headwater",
        "database.hostname": "localhost",
        "database.port": "1",
        "database.user": "nobody",
        "database.dbname": "nothing",
        "database.connection.factory.class": class_name,
    }


def require(complaints: Iterable[str]) -> None:
    """Takes what a worker says against a configuration.

    Raises:
        ConverterMissingError: It says that it does not have the class.
    """
    for complaint in complaints:
        missing = next((c for c in (CLASS, TOPIC_NAMES) if f"find class {c}" in complaint), None)
        if missing is not None:
            raise ConverterMissingError(
                "Kafka Connect does not have Headwater's converter, or has an older one",
                detail=f"class {missing}",
                hint=f"copy {JAR} to Debezium's jars on every worker, and restart the workers",
            )
