"""The converter: our class in the connector, which sends every value as Postgres prints it.

Debezium parses many values, and not all of them exactly.
`java/ExactValues.java` keeps them as text; the jar is built from it by
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
"""The name of its package contains the version of its value format."""

TOPIC_NAMES: Final = "headwater.connect.v1.TopicNames"
"""The class that gives distinct topic names to tables for which Debezium's names collide."""

_FOLDER: Final = Path(__file__).resolve().parent / "java"
SOURCE: Final = _FOLDER / "ExactValues.java"
CONVERTERS: Final = (_FOLDER / "ColumnRules.java", SOURCE)
SOURCES: Final = (*CONVERTERS, _FOLDER / "TopicNames.java")
"""Sources of the jar: the converter, the column rules, the topic names."""

JAR: Final = _FOLDER / "headwater-exact-values.jar"
"""The jar that a worker needs on its class path, or in the folder of Debezium's plugin."""


def properties(bytes_of: TableName | None = None) -> dict[str, str]:
    """Returns the connector properties that enable the class.

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
    """Returns a configuration whose validation shows whether a worker has a class.

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
    """Checks a worker's validation errors of a configuration.

    Raises:
        ConverterMissingError: The worker does not have the class.
    """
    for complaint in complaints:
        missing = next((c for c in (CLASS, TOPIC_NAMES) if f"find class {c}" in complaint), None)
        if missing is not None:
            raise ConverterMissingError(
                "Kafka Connect does not have Headwater's converter, or has an older one",
                detail=f"class {missing}",
                hint=f"copy {JAR} to Debezium's jars on every worker, and restart the workers",
            )
