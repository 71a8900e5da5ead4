"""Files between tasks of a rebuild: whole or not there, done once, and errors with a name."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from projections.archive.rebuilding.task_errors import named_errors
from projections.archive.rebuilding.tasks import TasksFailedError
from projections.common.fault import Fault, FaultError
from projections.common.task_files import TaskFiles
from projections.errors import (
    ArchiveMissingError,
    BulkLostError,
    ProjectionError,
    RebuildSpaceError,
    ReplayError,
    SinkUnavailableError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMED = pa.schema([("file", pa.string())])


def numbers(*each: int) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"id": list(each)})]


def written(files: TaskFiles, number: int) -> dict[str, str]:
    with files.writing(NAMED) as (name, file):
        file.write_batch(pa.RecordBatch.from_pydict({"file": [f"row of {number}"]}, NAMED))
    return {"file": name}


def results(files: TaskFiles, do: Any, *each: int) -> list[str]:
    with files.at_work():
        return [b.column(0)[0].as_py() for b in files.pieces(numbers(*each), NAMED, do)]


def test_a_task_that_is_run_again_does_only_what_is_not_done(tmp_path: Path) -> None:
    files, done = TaskFiles.made(tmp_path), list[int]()

    def do(number: int) -> dict[str, str]:
        if number == 2 and len(done) == 2:
            raise ConnectionResetError
        done.append(number)
        return written(files, number)

    with pytest.raises(FaultError):
        results(files, do, 0, 1, 2, 3)
    assert files.done(4) == 0.5
    done.append(-1)
    first = results(files, do, 0, 1, 2, 3)

    assert [0, 1, -1, 2, 3] == done
    assert first == results(files, do, 0, 1, 2, 3)
    assert len({*first}) == 4
    assert files.done(4) == 1.0
    assert all((files.folder / name).exists() for name in first)


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    files = TaskFiles.made(tmp_path)
    with files.writing(NAMED) as (name, file):
        file.write_batch(pa.RecordBatch.from_pydict({"file": ["row"]}, NAMED))
        assert not (files.folder / name).exists()
    with pa.ipc.open_file(str(files.folder / name)) as found:
        assert ["row"] == found.read_all()["file"].to_pylist()

    with pytest.raises(KeyError), files.writing(NAMED):
        raise KeyError
    assert [name] == [path.name for path in files.folder.iterdir()]


def test_a_full_disk_is_named_and_what_was_begun_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, drafted = TaskFiles.made(tmp_path), TaskFiles._drafted

    @contextmanager
    def full(own: TaskFiles, path: Path) -> Iterator[Path]:
        with drafted(own, path) as draft:
            draft.touch()
            yield Path("/dev/full")

    monkeypatch.setattr(TaskFiles, "_drafted", full)
    with pytest.raises(FaultError) as ended:
        results(files, lambda number: written(files, number), 0)

    found = Fault.find(str(ended.value))
    assert found is not None
    assert (RebuildSpaceError.code, True) == (found.code, found.retriable)
    assert str(tmp_path) in (found.detail or "")
    assert [] == [*files.folder.iterdir()]


def test_an_executor_with_another_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FaultError) as ended, TaskFiles(tmp_path / "nowhere").at_work():
        pytest.fail("it sees no folder")

    found = Fault.find(str(ended.value))
    assert found is not None
    assert found.code == "HW-P103"


def test_an_error_of_a_task_shows_no_value(tmp_path: Path) -> None:
    with pytest.raises(FaultError) as ended, TaskFiles.made(tmp_path).at_work():
        raise ValueError("a customer's name")

    assert "customer" not in str(ended.value)
    assert "ValueError at task_files.py" in str(ended.value)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(errno.ENOSPC, "full"), RebuildSpaceError, "/home"),
        (OSError(errno.EDQUOT, "quota"), RebuildSpaceError, "/home"),
        (OSError("x: No space left on device (os error 28)"), RebuildSpaceError, "/home"),
        (OSError(errno.EIO, "a value"), SinkUnavailableError, "OSError"),
        (OSError(str(FaultError(ArchiveMissingError("it is gone")))), ArchiveMissingError, ""),
        (TasksFailedError("an executor is lost", "Py4JError"), BulkLostError, "Py4JError"),
        (FaultError(ReplayError("a task failed", detail="at x")), BulkLostError, "at x"),
        (
            OSError(str(FaultError(SinkUnavailableError("refused", detail="so")))),
            SinkUnavailableError,
            "so",
        ),
    ],
)
def test_what_tasks_say_gets_a_name(
    error: Exception, kind: type[ProjectionError], said: str
) -> None:
    with pytest.raises(kind) as ended, named_errors("what", Path("/home/.view.filling")):
        raise error
    assert said in (ended.value.detail or "")
