"""Errors of Java and jars.

SupplyError
├── JavaMissingError       HW-J001
├── JavaTooOldError        HW-J002
├── JavaIncompleteError    HW-J003
├── JarDamagedError        HW-J010
├── JarUnavailableError    HW-J011
└── LockUnreadableError    HW-J012
"""

from __future__ import annotations

from foundation.errors import EXIT_MISSING
from headwater.errors import HeadwaterError


class SupplyError(HeadwaterError):
    """A Java program or library that Headwater needs is missing."""

    code = "HW-J000"
    exit_code = EXIT_MISSING


class JavaMissingError(SupplyError):
    """No Java runtime was found."""

    code = "HW-J001"


class JavaTooOldError(SupplyError):
    """All Java runtimes that were found are too old."""

    code = "HW-J002"


class JavaIncompleteError(SupplyError):
    """The Java runtime lacks a module that Spark's launcher needs."""

    code = "HW-J003"


class JarDamagedError(SupplyError):
    """A jar's checksum differs from the lock file."""

    code = "HW-J010"


class JarUnavailableError(SupplyError):
    """A locked jar is missing from the local cache, and the download failed."""

    code = "HW-J011"
    retriable = True


class LockUnreadableError(SupplyError):
    """A lock file is missing, malformed or names an unknown environment."""

    code = "HW-J012"
