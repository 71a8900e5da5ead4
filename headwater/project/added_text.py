"""AddedText: text at the end of several files, in all of them or, after a repeat, in none.

What the files are like before and afterwards is noted first, as digests: the note holds no text. So
a command that is killed between two files leaves a note, and the next one takes away what was
added and begins again. A file that a person has changed meanwhile is left to them.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from foundation import file_lock
from foundation.atomic_file import sync_folder, write_atomically
from headwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOTE: Final = ".headwater-adding.json"
"""Stands beside the settings as long as text is being added."""

_WAIT_S: Final = 5.0
"""As long as another command takes that adds text."""

_SECRET: Final = 0o600
_ALL: Final = 0o777


@dataclass(frozen=True, slots=True)
class AddedText:
    """A file that is made longer, or made.

    Attributes:
        file: The file.
        size_before: Its bytes before; None if it is made.
        before: Digest of these.
        after: Digest of all that it has afterwards.
    """

    file: str
    size_before: int | None
    before: str
    after: str

    @classmethod
    def of(cls, file: Path, content: bytes) -> AddedText:
        """Says what becomes of a file by its new content, which begins with the present one."""
        there = _read(file)
        size = None if there is None else len(there)
        return cls(str(file.resolve()), size, _digest(there or b""), _digest(content))

    def undone(self) -> bool:
        """Whether the file is as it was before.

        Raises:
            UsageError: It is neither that nor what was written.
        """
        there = _read(Path(self.file))
        if _digest(there or b"") == self.before and (there is None) == (self.size_before is None):
            return True
        if there is not None and _digest(there) == self.after:
            return False
        raise UsageError(
            f"{Path(self.file).name} has changed since a source was being added to it",
            detail="headwater init --add-source was interrupted before it had written all files",
            hint=f"remove what it added from the end of {self.file}, or complete it in all files; "
            f"then remove {NOTE}",
        )

    def undo(self) -> None:
        """Takes the added text away."""
        file = Path(self.file)
        if self.size_before is None:
            file.unlink()
            return
        content = file.read_bytes()[: self.size_before]
        write_atomically(file, content, mode=file.stat().st_mode & _ALL)


def joined(file: Path, text: str) -> bytes:
    """Returns the content of a file with text at its end, on a line of its own."""
    there = _read(file) or b""
    between = b"\n" if there and not there.endswith(b"\n") else b""
    return there + between + text.lstrip("" if there else "\n").encode()


@contextmanager
def adding(
    folder: Path, name: str, contents: Sequence[tuple[Path, bytes]], drafts: Sequence[Path] = ()
) -> Iterator[None]:
    """Notes what becomes of files while the block writes them; after an error nothing is left.

    Args:
        folder: Where the note stands.
        name: What is added.
        contents: The files, and what each will be.
        drafts: Files that the block makes and removes.
    """
    changes = [asdict(AddedText.of(*each)) for each in contents]
    note = {"name": name, "files": changes, "drafts": [str(each.resolve()) for each in drafts]}
    with _settings_lock(folder):
        _remove_drafts(folder / NOTE)  # of a command that was killed while it wrote its note
        write_atomically(folder / NOTE, json.dumps(note), mode=_SECRET)
        try:
            yield
        except BaseException:
            _undo(folder)
            raise
        _forget(folder)


def unfinished(folder: Path) -> str | None:
    """Returns the name of what was being added when a command was killed; None of nothing."""
    with suppress(OSError, ValueError):
        return str(json.loads((folder / NOTE).read_bytes())["name"])
    return None


def undo(folder: Path) -> str | None:
    """Takes away what a killed command has added; returns what that was, None if there was none.

    Raises:
        UsageError: A file has changed since, or another command is adding text.
    """
    if unfinished(folder) is None:
        return None
    with _settings_lock(folder):
        name = unfinished(folder)  # a command that was still running may have finished
        if name is not None:
            _undo(folder)
        return name


def _undo(folder: Path) -> None:
    note = json.loads((folder / NOTE).read_bytes())
    changes = [AddedText(**each) for each in reversed(note["files"])]
    for change in [each for each in changes if not each.undone()]:
        change.undo()
    for file in (*(Path(each.file) for each in changes), *map(Path, note["drafts"])):
        _remove_drafts(file)
    for draft in note["drafts"]:
        Path(draft).unlink(missing_ok=True)
    _forget(folder)


def _remove_drafts(file: Path) -> None:
    """Removes what a killed `write_atomically` of a file has left."""
    for draft in file.parent.glob(f".{file.name}.????????.tmp"):
        draft.unlink(missing_ok=True)


def _forget(folder: Path) -> None:
    (folder / NOTE).unlink()
    sync_folder(folder)


@contextmanager
def _settings_lock(folder: Path) -> Iterator[None]:
    with ExitStack() as held:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, handle)
        if not file_lock.try_lock(handle, wait_s=_WAIT_S):
            raise UsageError(
                "another command is adding a source to this project", detail=str(folder.resolve())
            )
        yield


def _read(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
