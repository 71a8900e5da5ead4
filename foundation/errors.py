"""PlatformError: the base of every error that Headwater raises, and the exit codes of commands.

| exit code | a command ended with |
|---|---|
| 0 | success |
| 1 | a failure that no other code describes |
| 2 | a command, a declaration or a setting that cannot be carried out as written |
| 3 | something that should run does not, or copies differ |
| 4 | a requirement that is not installed or not free on this machine |
| 130 | an interrupt by the user |
"""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNHEALTHY: Final = 3
EXIT_MISSING: Final = 4
EXIT_INTERRUPTED: Final = 130


class PlatformError(Exception):
    """Base of the error classes of all packages; each package has a root class of its own.

    It survives pickling with all its attributes, whatever the constructor of a subclass: errors
    cross from worker processes to the process that reports them.

    Args:
        message: Lowercase statement of the fact, without a full stop.
        detail: The observation; never a secret, a payload or a value of a row.
        hint: The command or change that repairs the cause.
    """

    code: ClassVar[str]
    retriable: ClassVar[bool] = False
    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[PlatformError], args: tuple[object, ...], state: dict[str, object]
) -> PlatformError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error
