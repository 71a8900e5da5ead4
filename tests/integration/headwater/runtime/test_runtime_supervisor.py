"""The supervisor's promises, shown with the servers that start fastest."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from headwater import runtime
from headwater.runtime import (
    CommandSpec,
    External,
    RuntimeSpec,
    ServiceName,
    ServiceState,
    Spawned,
    identity,
)
from headwater.runtime.errors import (
    DiskNearlyFullError,
    PortTakenError,
    ServiceFailedError,
    SettingsDifferError,
)
from headwater.runtime.home import Home, read_json
from headwater.runtime.identity import Identity, launcher
from headwater.runtime.process import ManagedProcess, ProcessRecord
from headwater.runtime.servers.postgres import Postgres
from tests.waiting import take_time, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.runtime import ServiceStatus, StatusEvent

pytestmark = pytest.mark.integration

CACHE = {ServiceName.CACHE: Spawned()}
NOBODY = 65_534
REACHES_ITSELF = (
    "import headwater, subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
)
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / ".headwater"
    yield folder
    runtime.down(folder)


def _command(name: str, code: str, *arguments: str, **settings: object) -> CommandSpec:
    return CommandSpec(name, (sys.executable, "-c", code, *arguments), **settings)  # type: ignore[arg-type]


def _dying(home: Path, exit_code: int, **settings: object) -> tuple[CommandSpec, Path]:
    """A command that ends once a file is there; one that ends sooner is refused by `up` itself."""
    mark = home.with_name("mark")
    code = (
        "import pathlib, time\n"
        f"while not pathlib.Path({str(mark)!r}).exists(): time.sleep(0.01)\n"
        f"raise SystemExit({exit_code})"
    )
    return _command("job", code, **settings), mark


def _records(home: Path) -> list[ProcessRecord]:
    found = [ProcessRecord.from_json(read_json(f)) for f in Home(home).run.glob("*.pid")]
    return [record for record in found if record is not None]


def _wait_for(
    home: Path, name: str, what: Callable[[ServiceStatus], bool], timeout_s: float = 60
) -> ServiceStatus:
    def service() -> ServiceStatus | None:
        found = runtime.status(home)
        return found.service(name) if found is not None else None

    seen = wait_until(
        service, accept=lambda status: status is not None and what(status), timeout_s=timeout_s
    )
    assert seen is not None
    return seen


def _starter(home: Path, services: str, *, lifeline: bool) -> list[str]:
    code = f"""
from pathlib import Path
from headwater import runtime
from headwater.runtime import RuntimeSpec, ServiceName, Spawned
services = {{ServiceName(name): Spawned() for name in {services.split()!r}}}
spec = RuntimeSpec(Path({str(home)!r}), services, lifeline={lifeline})
print("begins", flush=True)
runtime.up(spec, on_event=lambda event: print(event.service.state, flush=True))
print("up", flush=True)
import time; time.sleep(600 if {lifeline} else 0)
"""
    return [sys.executable, "-c", code]


def test_other_settings_in_the_same_folder_are_refused_and_named(home: Path) -> None:
    runtime.up(RuntimeSpec(home, CACHE))

    with pytest.raises(SettingsDifferError) as caught:
        runtime.up(RuntimeSpec(home, {ServiceName.CACHE: Spawned(memory_mb=64)}))

    assert (caught.value.detail or "").endswith(": valkey")


def test_who_asks_for_less_than_runs_joins_from_any_folder(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = _command("job", SLEEP)
    first = runtime.up(RuntimeSpec(home, CACHE, commands=(job,)))
    monkeypatch.chdir(tmp_path)

    assert first == runtime.up(RuntimeSpec(home, CACHE))
    assert first == runtime.up(RuntimeSpec(home, CACHE, commands=(job,)))


def test_data_and_port_survive_a_restart(home: Path) -> None:
    import redis

    spec = RuntimeSpec(home, CACHE)
    first = runtime.up(spec)
    with redis.Redis.from_url(first.cache_url) as client:
        client.set("key", "value")
    runtime.down(home)

    second = runtime.up(spec)

    assert first == second
    with redis.Redis.from_url(second.cache_url) as client:
        assert b"value" == client.get("key")


def test_a_set_port_that_is_taken_is_refused_and_nothing_is_left(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        with pytest.raises(PortTakenError, match=str(port)):
            runtime.up(RuntimeSpec(home, {ServiceName.CACHE: Spawned(port=port)}))

    assert [] == _records(home)
    assert runtime.status(home) is None


def test_a_nearly_full_disk_is_refused_before_anything_starts(home: Path) -> None:
    with pytest.raises(DiskNearlyFullError):
        runtime.up(RuntimeSpec(home, CACHE, disk_free_min_bytes=2**60))

    assert [] == _records(home)


def test_an_external_server_is_used_and_never_stopped(home: Path, tmp_path: Path) -> None:
    ours = runtime.up(RuntimeSpec(home, CACHE))
    other = tmp_path / "other"
    job = _command("job", SLEEP, depends_on=("valkey",))

    seen = runtime.up(
        RuntimeSpec(other, {ServiceName.CACHE: External(ours.cache_url)}, commands=(job,))
    )
    shown = runtime.status(other)
    runtime.down(other)

    assert ours.cache_url == seen.cache_url
    assert shown is not None
    assert {"valkey": "external", "job": "command"} == {s.name: s.kind for s in shown.services}
    found = runtime.status(home)
    assert found is not None
    assert found.ready


def test_a_command_waits_for_what_it_depends_on_and_for_its_ready_file(
    home: Path, tmp_path: Path
) -> None:
    ready = tmp_path / "ready"
    first = _command(
        "first",
        f"import sys, pathlib; pathlib.Path(sys.argv[1]).touch(); {SLEEP}",
        str(ready),
        ready_file=ready,
        depends_on=("valkey",),
    )
    second = _command("second", SLEEP, depends_on=("first",))
    order: list[str] = []

    def note(event: StatusEvent) -> None:
        if event.service.state is ServiceState.READY:
            order.append(event.service.name)

    runtime.up(RuntimeSpec(home, CACHE, commands=(first, second)), on_event=note)

    assert ["valkey", "first", "second"] == sorted(order, key=["valkey", "first", "second"].index)
    found = runtime.status(home)
    assert found is not None
    since = [service.since for service in found.services]
    assert sorted(since) == since


def test_a_command_that_keeps_dying_spends_its_budget_and_is_named(home: Path) -> None:
    job, mark = _dying(home, 7, restarts_max=1)
    runtime.up(RuntimeSpec(home, CACHE, commands=(job,)))
    mark.touch()
    failed = _wait_for(home, "job", lambda s: s.state is ServiceState.FAILED)

    with pytest.raises(ServiceFailedError, match="job could not be started"):
        runtime.up(RuntimeSpec(home, CACHE, commands=(job,)))

    assert "ended with exit code 7; died 2 times" == failed.last_error


def test_a_command_with_a_wrong_setting_is_not_restarted(home: Path) -> None:
    job, mark = _dying(home, 2)
    runtime.up(RuntimeSpec(home, CACHE, commands=(job,)))
    mark.touch()

    failed = _wait_for(home, "job", lambda s: s.state is ServiceState.FAILED)

    assert 0 == failed.restarts
    assert "ended with exit code 2" == failed.last_error


def test_a_command_that_someone_else_stops_is_restarted(home: Path) -> None:
    ready = home.with_name("ready")
    code = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n{SLEEP}"
    )
    job = _command("job", code, ready_file=ready)
    runtime.up(RuntimeSpec(home, CACHE, commands=(job,)))
    stopped = _wait_for(home, "job", lambda s: s.ready)
    os.kill(stopped.pid or 0, signal.SIGTERM)

    again = _wait_for(home, "job", lambda s: s.ready and s.restarts == 1)

    assert stopped.pid != again.pid
    assert "ended with exit code 0" == again.last_error


def test_a_suspended_command_stays_down_beside_the_others_until_the_next_up(home: Path) -> None:
    ready = home.with_name("ready")
    beside = _command("beside", SLEEP)
    job = _command("job", f"import pathlib; pathlib.Path({str(ready)!r}).touch(); {SLEEP}")
    stubborn = _command(
        "stubborn",
        f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}",
        stop_timeout_s=1.0,
    )
    failed, mark = _dying(home, 2)
    failed = replace(failed, name="failed")
    spec = RuntimeSpec(home, CACHE, commands=(beside, job, stubborn, failed))
    runtime.up(spec)
    mark.touch()
    _wait_for(home, "failed", lambda s: s.state is ServiceState.FAILED)
    before = _pids(home)

    stopped = runtime.suspend(home, ["job", "stubborn", "failed", "valkey", "unknown"])
    again = runtime.suspend(home, ["job"])
    take_time(2)
    then, shown = _pids(home), runtime.status(home)

    assert (["job", "stubborn", "failed"], []) == (stopped, again)
    assert {"valkey", "beside"} == then.keys()
    assert then.items() <= before.items()
    assert shown is not None
    assert (True, {ServiceState.SUSPENDED}) == (
        shown.ready,
        {s.state for s in shown.services if s.name in stopped},
    )

    runtime.up(replace(spec, commands=(beside, job)))  # asks for less than is suspended
    _wait_for(home, "job", lambda s: s.ready and s.pid != before["job"])

    assert {"valkey", "beside", "job"} == _pids(home).keys()


def test_a_command_that_is_suspended_while_its_supervisor_is_killed_runs_after_the_next_up(
    home: Path,
) -> None:
    spec = RuntimeSpec(home, CACHE, commands=(_command("job", SLEEP),))
    runtime.up(spec)
    Home(home).suspended_file("job").touch()
    supervisor = runtime.status(home)
    assert supervisor is not None
    os.kill(supervisor.supervisor.pid, signal.SIGKILL)
    assert supervisor.supervisor.wait_gone(10)

    nothing = runtime.suspend(home, ["job"])
    runtime.up(spec)

    assert [] == nothing
    assert {"valkey", "job"} == _pids(home).keys()


def _pids(home: Path) -> dict[str, int]:
    found = runtime.status(home)
    assert found is not None
    return {service.name: service.pid for service in found.services if service.pid}


def test_a_log_never_grows_far_beyond_its_cap(home: Path) -> None:
    chatty = _command("job", f"print('x' * 50_000, flush=True); {SLEEP}")
    runtime.up(RuntimeSpec(home, CACHE, commands=(chatty,), log_bytes_max=10_000))
    log = runtime.log_path(home, "job")
    wait_until(log.with_name("job.log.1").exists, "a second log")

    assert log.stat().st_size <= 10_000
    assert 10_000 == log.with_name("job.log.1").stat().st_size


@pytest.mark.fault
def test_ctrl_c_before_everything_is_ready_leaves_nothing(home: Path) -> None:
    command = _starter(home, "postgres opensearch valkey", lifeline=False)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as starter:
        assert starter.stdout is not None
        while starter.stdout.readline().strip() != b"ready":
            pass
        records = _records(home)
        starter.send_signal(signal.SIGINT)
        starter.wait(60)

    assert 2 <= len(records)
    assert [] == [record.name for record in records if not record.wait_gone(5)]
    assert [] == _records(home)


@pytest.mark.fault
@pytest.mark.parametrize("moment", [b"ready", b"up"], ids=["while-starting", "when-up"])
def test_everything_stops_when_a_starter_with_a_lifeline_is_killed(
    home: Path, moment: bytes
) -> None:
    command = _starter(home, "postgres valkey", lifeline=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        while starter.stdout.readline().strip() != moment:
            pass
        records = _records(home)
        starter.kill()

    assert [] == [record.name for record in records if not record.wait_gone(30)]
    assert [] == _records(home)


def test_what_up_started_lives_on_without_its_starter(home: Path) -> None:
    command = _starter(home, "valkey", lifeline=False)

    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    found = runtime.status(home)
    assert found is not None
    assert found.ready


def test_two_starts_at_once_make_one_stack(home: Path) -> None:
    command = _starter(home, "postgres valkey", lifeline=False)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE) as two,
    ):
        outputs = [starter.communicate(timeout=90)[0] for starter in (one, two)]

    assert [b"up", b"up"] == [output.split()[-1] for output in outputs]
    log = runtime.log_path(home, "supervisor").read_text()
    assert 1 == log.count('"service": "postgres", "state": "ready"')


def test_postgres_that_died_with_a_lock_file_naming_another_program_starts_again(
    home: Path,
) -> None:
    spec = RuntimeSpec(home, {ServiceName.POSTGRES: Spawned()})
    runtime.up(spec)
    data = home / "data/postgres/pgdata"
    lock = (data / "postmaster.pid").read_text().splitlines()
    runtime.down(home)
    # As after a reboot in which another program was given the number.
    (data / "postmaster.pid").write_text("\n".join([str(os.getpid()), *lock[1:]]) + "\n")

    assert runtime.up(spec).postgres_dsn is not None


@pytest.fixture
def public_home() -> Iterator[Path]:
    """A home in a folder that another user can reach; pytest's own folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / ".headwater"
        runtime.down(Path(folder) / ".headwater")


def _as_ordinary_user(home: Path, command: list[str]) -> list[str]:
    """As another user if the interpreter is within its reach, else as one inside a namespace."""
    if os.geteuid() != 0:
        return command
    switch = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]
    reached = subprocess.run(
        [*switch, sys.executable, "-c", REACHES_ITSELF], check=False, capture_output=True
    )
    if reached.returncode != 0:
        return launcher(command, identity=Identity(map_user=NOBODY))
    os.chown(home.parent, NOBODY, NOBODY)
    return [*switch, *command]


def test_an_ordinary_user_can_start_and_stop(public_home: Path) -> None:
    command = _starter(public_home, "postgres valkey", lifeline=False)

    subprocess.run(_as_ordinary_user(public_home, command), check=True)
    found = runtime.status(public_home)
    stopped = runtime.down(public_home)

    assert found is not None
    assert found.ready
    assert stopped
    assert [] == _records(public_home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account for Postgres")
def test_root_without_user_namespaces_runs_postgres_as_another_account(
    public_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public_home.parent.chmod(0o755)
    spec = RuntimeSpec(public_home, {ServiceName.POSTGRES: Spawned()})
    runtime.up(spec)
    runtime.down(public_home)
    works = identity._works
    monkeypatch.setattr(identity, "_works", lambda i, p: i.map_user is None and works(i, p))
    postgres = Postgres(Home(public_home), port=_free_port())

    postgres.prepare()
    launch = postgres.launch()
    owner = postgres.data.stat().st_uid
    process = ManagedProcess.start(
        "postgres",
        launch,
        log=public_home / "log/postgres.log",
        pid_file=public_home / "run/postgres.pid",
    )
    wait_until(lambda: postgres.answers(2), (public_home / "log/postgres.log").read_text)
    process.ask_to_stop()

    assert process.record.wait_gone(20)
    assert 0 == process.poll()
    assert launch.identity.user == owner != 0
    monkeypatch.undo()
    assert runtime.up(spec).postgres_dsn is not None


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_status_and_endpoints_change_nothing(home: Path) -> None:
    assert runtime.status(home) is None
    assert not runtime.down(home)
    assert not home.exists()


def test_the_status_file_is_valid_at_every_moment(home: Path) -> None:
    path = Home(home).status
    jobs = tuple(
        _command(f"job{n}", "import time; time.sleep(0.2); raise SystemExit(9)") for n in range(3)
    )
    runtime.up(RuntimeSpec(home, CACHE, commands=jobs))

    def restarts() -> int:
        services = json.loads(path.read_text("utf-8"))["services"]
        assert 4 == len(services)
        return sum(service["restarts"] for service in services)

    wait_until(restarts, "each job's third start", accept=lambda n: n >= 6, pause_s=0.0005)


def test_a_supervisor_that_has_nothing_to_do_sleeps(home: Path) -> None:
    runtime.up(RuntimeSpec(home, CACHE, commands=(_command("job", SLEEP),)))
    status = runtime.status(home)
    assert status is not None
    assert status.supervisor is not None
    process = psutil.Process(status.supervisor.pid)

    before = process.num_ctx_switches().voluntary
    take_time(3)

    assert process.num_ctx_switches().voluntary - before < 15  # it looked ten times a second
