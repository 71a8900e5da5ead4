"""Classes of Spark's JVM, each looked up once.

Java searches every jar for an unknown class, and Spark has three hundred jars. py4j asks for each
part of a dotted name, and for a short name in each package that pyspark imports; that took a
sixteenth of the JVM's processor time. A class is therefore requested by its full name, and cached
where py4j looks first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATASET: Final = "org.apache.spark.sql.classic.Dataset"
"""The class that turns a plan into rows."""

_OF_EVERY_COLUMN: Final = ("functions", "PythonUtils", "PythonSQLUtils")


def java_class(session: SparkSession, name: str) -> Any:
    """Returns a class whose call creates an object.

    Args:
        session: A session of the JVM.
        name: Its full name.

    Raises:
        LookupError: The JVM has no such class.
    """
    jvm: Any = session._jvm  # noqa: SLF001  # py4j's door, which pyspark does not open
    class_ = vars(jvm).get(name)
    if class_ is None:
        class_ = getattr(jvm, name)
        if not isinstance(class_, JavaClass):  # py4j takes any other name for a package
            raise LookupError(name)
        setattr(jvm, name, class_)
    return class_


def scala_object(session: SparkSession, name: str) -> Any:
    """Returns the instance of a Scala `object`; see `java_class`."""
    own = java_class(session, f"{name}$")
    instance = vars(own).get("MODULE$")
    if instance is None:
        instance = getattr(own, "MODULE$")
        setattr(own, "MODULE$", instance)
    return instance


def remember(session: SparkSession) -> None:
    """Caches the classes that pyspark looks up by short names for every column."""
    for name in _OF_EVERY_COLUMN:
        java_class(session, name)
