"""Functions of versions: stored when a version is created, so that it keeps its own function.

The parts of the views module that a function needs
(`projections.definition.derived.function_source`) are stored in a file of the home folder, named by
its digest. The source database has the digest only. An altered row can therefore name another
stored file, but cannot run anything else: a file runs only if its content matches its name.

A file is written before the row that names it, and removed once no row names it.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from foundation.advisory_lock import AdvisoryLock
from foundation.atomic_file import write_atomically
from projections.definition.derived.function_source import MADE, digest_of
from projections.definition.derived.view_function import ViewFunction, digest_in
from projections.definition.diff import is_function
from projections.definition.views import DerivedView
from projections.errors import FunctionLostError
from projections.versions import registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import psycopg

    from projections.definition.views import AnyView

    Connection = psycopg.Connection[Any]

_MODULE: Final = "headwater_views"
"""Module name of the project's views, and of a stored part of them, while it runs."""

_FILE: Final = re.compile(r"[0-9a-f]{64}\.(py|tmp)|\.[0-9a-f]{64}\.py\.[0-9a-f]+\.tmp")
_LOCK: Final = AdvisoryLock("hashtext('headwater.functions')")
_NAMED: Final = """
SELECT DISTINCT definition ->> 'text' FROM headwater.view_versions
 WHERE state <> 'dropped' AND definition ->> 'is' = 'DerivedView'
"""
_RENAMED: Final = """
UPDATE headwater.view_versions SET definition = jsonb_set(definition, '{text}', to_jsonb(%s::text))
 WHERE source = %s AND view = %s AND state <> 'dropped' AND definition ->> 'text' = %s
   AND definition ->> 'is' = 'DerivedView'
"""
_running = Lock()


@dataclass(frozen=True, slots=True)
class StoredFunction:
    """A stored function of a version; it finds its file in any process that it is sent to.

    Attributes:
        view: Name of the view.
        folder: The folder of stored functions.
        digest: Digest of its text.
    """

    view: str
    folder: Path
    digest: str

    def __call__(self, *inputs: Any) -> Any:
        """Computes the view from one DataFrame for each input.

        Raises:
            FunctionLostError: The stored file is gone, or was altered.
        """
        return self.made(*inputs)

    @property
    def made(self) -> Callable[..., Any]:
        """The function itself.

        Raises:
            FunctionLostError: The stored file is gone, or was altered.
        """
        try:
            return _run(self.folder / f"{self.digest}.py", self.digest)
        except _LostError as error:
            raise FunctionLostError(
                f"the function that a version of view {self.view} is made by {error}",
                detail=f"{self.folder.name}/{self.digest}.py in the home folder",
                hint="put the file back; or declare the function as it was, and start the job"
                f" again; or headwater view rebuild {self.view} makes a version by the one that is"
                " declared, and cutover shows it",
            ) from None


class _LostError(Exception):
    """The function cannot be run; the text is the reason."""


def with_function(kept: DerivedView, declared: DerivedView, folder: Path) -> DerivedView:
    """Returns a version of a view with the function for which it was created.

    If the parts that the function needs could not be determined, this is the declared function.

    Args:
        kept: The view as recorded for the version.
        declared: The declared view.
        folder: The folder of stored functions.
    """
    if not is_function(kept):
        return kept
    digest = digest_in(kept.text)
    if digest is not None and (declared.function is None or declared.text != kept.text):
        return replace(kept, function=StoredFunction(declared.name, folder, digest))
    if declared.function is None:
        return kept
    return replace(kept, function=declared.function, text=declared.text)


def in_place(declared: DerivedView) -> str:
    """Describes how a view adopts its declared function if the former one is not stored."""
    function = declared.function
    why = function.unresolved if isinstance(function, ViewFunction) else ""
    adoption = "its rows are computed in its place when the job starts again"
    return f"{adoption}, as its function cannot be kept apart: {why}" if why else adoption


@contextmanager
def noting(
    connection: Connection,
    source: str,
    folder: Path,
    declared: Iterable[AnyView],
    *,
    shared: bool = False,
) -> Iterator[None]:
    """Stores the functions of views whose versions are recorded inside the block.

    An earlier release identified a function by the whole module; if that module is unchanged, the
    row is updated to the new digest. At the end, files that no version names are removed.

    Args:
        connection: To the source, in autocommit; all rows are recorded in one transaction.
        source: Its name.
        folder: The folder of stored functions.
        declared: The declared views.
        shared: Versions of other sources name files of the folder too, so none is removed.

    Raises:
        OSError: The folder cannot be written.
    """
    with _files_lock(connection):
        for view in declared:
            if isinstance(view, DerivedView) and isinstance(view.function, ViewFunction):
                _keep(folder, view.function)
                if view.text != view.function.former and registry.ready(connection):
                    values = view.text, source, view.name, view.function.former
                    connection.execute(_RENAMED, values)
        yield
        if not shared:
            _tidy(connection, folder)


def tidy(connection: Connection, folder: Path, *, shared: bool = False) -> None:
    """Removes stored functions that no version names.

    Args:
        connection: To the source, in autocommit.
        folder: The folder of stored functions.
        shared: Versions of other sources name files of the folder too, so none is removed.
    """
    if shared:
        return
    with _files_lock(connection):
        _tidy(connection, folder)


@contextmanager
def _files_lock(connection: Connection) -> Iterator[None]:
    """Takes the lock of the files and of the rows that name them."""
    with connection.transaction():
        connection.execute(_LOCK.in_transaction)
        yield


def _keep(folder: Path, function: ViewFunction) -> None:
    part = function.part
    if part is None:
        return
    file = folder / f"{part.digest}.py"
    try:
        _read(file, part.digest)
    except _LostError:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(file, part.text)  # the row must not outlive its file


def _tidy(connection: Connection, folder: Path) -> None:
    if not folder.is_dir() or not registry.ready(connection):
        return
    texts = (text for (text,) in connection.execute(_NAMED).fetchall())
    named = {f"{digest}.py" for text in texts if (digest := digest_in(text or "")) is not None}
    for file in folder.iterdir():
        if _FILE.fullmatch(file.name) and file.name not in named:
            file.unlink(missing_ok=True)


def _read(file: Path, digest: str) -> str:
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise _LostError("is gone") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _LostError(f"cannot be read: {type(error).__name__}") from None
    try:
        same = digest_of(text) == digest
    except (SyntaxError, ValueError):
        same = False
    if not same:
        raise _LostError("was altered")
    return text


@lru_cache(maxsize=256)
def _run(file: Path, digest: str) -> Callable[..., Any]:
    """Runs a stored part as a views module, and returns the function."""
    code = compile(_read(file, digest), str(file), "exec", dont_inherit=True)
    module = ModuleType(_MODULE)
    with _running:
        before = sys.modules.get(_MODULE)
        sys.modules[_MODULE] = module  # classes look up their module while they are created
        try:
            exec(code, module.__dict__)  # noqa: S102  # the text is the project's own module's
        finally:
            if before is None:
                del sys.modules[_MODULE]
            else:
                sys.modules[_MODULE] = before
    made: Callable[..., Any] = vars(module)[MADE]
    return made
