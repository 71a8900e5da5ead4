"""Commands on several sources: an error of one source is reported, and the others continue."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import typer

from foundation.errors import PlatformError
from headwater.cli.hints import using_source
from headwater.cli.output import escape, print_error, stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.platform.platform import Platform

T = TypeVar("T")


@dataclass(slots=True)
class PerSource(Generic[T]):
    """The results of a command for each source.

    Attributes:
        several: Whether it works on more than one source; listings then name them.
        results: By the source's name; without those that failed.
        failed: Errors by the source's name; each was printed.
    """

    several: bool
    results: dict[str, T] = field(default_factory=dict)
    failed: dict[str, PlatformError] = field(default_factory=dict)

    def named(self, source: str) -> dict[str, str]:
        """Returns the column of a listing that names the source; none if there is only one."""
        return {"source": source} if self.several else {}

    def about(self, source: str) -> str | None:
        """Returns the source for hints about it; None if there is only one."""
        return source if self.several else None

    def heading(self, source: str) -> None:
        """Prints the source's name above its results, if there are several."""
        if self.several:
            stderr.print(f"[bold]source {escape(source)}[/]")

    def end(self, code: int = 0) -> None:
        """Ends the command.

        Args:
            code: Exit code, if no source failed.

        Raises:
            Exit: With that code, or with that of the first failure.
        """
        code = next((error.exit_code for error in self.failed.values()), code)
        if code:
            raise typer.Exit(code)


def for_each(platforms: Sequence[Platform], work: Callable[[Platform], T]) -> PerSource[T]:
    """Runs a function for each source.

    Args:
        platforms: The sources.
        work: The function.

    Raises:
        PlatformError: It fails for the only source.
    """
    done = PerSource[T](several=len(platforms) > 1)
    for platform in platforms:
        source = platform.project.source.name
        try:
            with using_source(source) if done.several else nullcontext():
                done.results[source] = work(platform)
        except PlatformError as error:
            if not done.several:
                raise
            done.failed[source] = error
            stderr.print(f"[bold]source {escape(source)}[/]")
            with using_source(source):
                print_error(error, as_json=False)
    return done
