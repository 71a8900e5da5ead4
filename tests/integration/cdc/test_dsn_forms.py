"""A database is the same one in every form of its address, for sessions and for the connector."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from cdc.capture import CaptureSpec
from cdc.connect.connector import connector_config
from cdc.postgres import address, session
from cdc.postgres.check import CheckState
from cdc.postgres.errors import HostUnknownError, PostgresError
from cdc.table import TableName
from headwater.cli import main
from headwater.project.settings import load
from tests.fix_standby import free_port

if TYPE_CHECKING:
    from tests.fix_standby import Clusters

pytestmark = pytest.mark.integration

VARIABLES = ("HOST", "PORT", "USER", "PASSWORD", "DATABASE", "SERVICE", "OPTIONS", "PASSFILE")


@pytest.fixture
def parts(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The words of a database's address, in an environment that says nothing of any."""
    for name in VARIABLES:
        monkeypatch.delenv(f"PG{name}", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return {name: str(value) for name, value in conninfo_to_dict(database).items()}


@pytest.fixture
def form(  # noqa: PLR0911  # a return for each
    request: pytest.FixtureRequest,
    parts: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:
    """The database's address in one form."""
    host, port, password = parts["host"], parts["port"], parts["password"]
    user, name = parts["user"], parts["dbname"]
    if request.param == "environment":
        for variable, word in (("HOST", host), ("PORT", port), ("USER", user)):
            monkeypatch.setenv(f"PG{variable}", word)
        monkeypatch.setenv("PGDATABASE", name)
        monkeypatch.setenv("PGPASSWORD", password)
        return ""
    if request.param == "user and password in the environment":
        monkeypatch.setenv("PGUSER", user)
        monkeypatch.setenv("PGPASSWORD", password)
        return f"postgresql://{host}:{port}/{name}"
    if request.param == "passfile":
        (tmp_path / "pass").write_text(f"*:{port}:{name}:{user}:{password}\n")
        (tmp_path / "pass").chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pass"))
        return f"postgresql://{user}@{host}:{port}/{name}"
    if request.param in {"service", "service in the environment"}:
        lines = [f"{key}={value}" for key, value in parts.items()]
        (tmp_path / "services").write_text("\n".join(["[shop]", *lines]) + "\n")
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        if request.param == "service":
            return "service=shop"
        monkeypatch.setenv("PGSERVICE", "shop")
        return ""
    if request.param == "several hosts":
        return f"postgresql://{user}:{password}@{host}:1,{host}:{port}/{name}"
    if request.param == "hostaddr":
        return f"hostaddr={host} port={port} user={user} password={password} dbname={name}"
    return (
        f"host=localhost hostaddr={host} port={port} user={user} password={password} dbname={name}"
    )


FORMS = [
    *("environment", "user and password in the environment", "passfile", "service"),
    *("service in the environment", "several hosts", "hostaddr", "name and hostaddr"),
]


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_the_connector_gets_what_sessions_use(
    form: str, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = address.resolve(form)
    spec = CaptureSpec("shop", form, (TableName("public", "t"),), "", "")
    config = connector_config(spec, found)
    for name in (*VARIABLES, "SERVICEFILE"):
        monkeypatch.delenv(f"PG{name}", raising=False)

    given = {
        "host": config["database.hostname"],
        "port": config["database.port"],
        "user": config["database.user"],
        "password": config["database.password"],
        "dbname": config["database.dbname"],
    }
    assert parts == given
    with closing(psycopg.connect(**given)) as connection:
        assert parts["dbname"] == connection.info.dbname
    assert parts["password"] not in repr(found)


@pytest.mark.parametrize("form", FORMS, indirect=True)
def test_a_project_that_init_wrote_is_found_without_the_environment(
    form: str,
    parts: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with session.connect(form) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")

    code = main(["init", "shop", "--dsn", form])

    said = "".join(capsys.readouterr())
    for name in ("HOST", "PORT", "USER", "PASSWORD", "DATABASE", "SERVICE"):
        monkeypatch.delenv(f"PG{name}", raising=False)
    dsn = load(tmp_path / "shop" / "headwater.toml").for_source("shop").dsn
    assert dsn is not None
    with session.connect(dsn.get_secret_value()) as connection:
        assert parts["dbname"] == connection.info.dbname
    files = [path for path in (tmp_path / "shop").iterdir() if path.name != ".env"]
    assert (0, False) == (code, parts["password"] in said)
    assert not [path for path in files if parts["password"] in path.read_text()]


def test_a_password_of_a_passfile_or_a_service_is_not_copied(
    parts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pass").write_text(f"*:*:*:*:{parts['password']}\n")
    (tmp_path / "pass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pass"))
    dsn = f"host={parts['host']} port={parts['port']} user={parts['user']} dbname={parts['dbname']}"

    with session.connect(dsn) as connection:
        kept = conninfo_to_dict(address.completed(dsn, connection))

    assert str(tmp_path / "pass") == kept["passfile"]
    assert "password" not in kept


def test_options_of_a_session_hold_beside_those_of_its_address(
    parts: dict[str, str], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=7s")
    ours = rf"{session.UNFILTERED} -c default_transaction_isolation=repeatable\ read"
    shown = []
    for dsn in (database, f"{database}?options=-c%20lock_timeout%3D9s%20-c%20jit%3Doff"):
        with session.connect(dsn, options=ours) as connection:
            shown.append(
                [
                    connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
                    for name in ("lock_timeout", "row_security", "default_transaction_isolation")
                ]
            )
            found = address.over_tcp(connection, dsn)
    config = connector_config(CaptureSpec("s", dsn, (TableName("public", "t"),), "", ""), found)

    assert [["7s", "off", "repeatable read"], ["9s", "off", "repeatable read"]] == shown
    assert "-c lock_timeout=9s -c jit=off -c row_security=off" == config["driver.options"]


def test_of_several_servers_the_one_that_takes_writes_is_the_source(clusters: Clusters) -> None:
    primary = clusters.start()
    standby = clusters.join(primary.standby(clusters.folder("standby"), free_port()))
    ports = f"{standby.port},{primary.port}"
    dsn = f"host=127.0.0.1,127.0.0.1 port={ports} user=postgres password={primary.password}"

    found = address.resolve(f"{dsn} dbname=postgres")
    chosen = address.resolve(f"{dsn} dbname=postgres target_session_attrs=standby")

    assert (primary.port, standby.port) == (found.port, chosen.port)


def test_behind_a_socket_the_connector_gets_the_same_server_over_tcp(
    clusters: Clusters, tmp_path: Path
) -> None:
    sockets = Path("/tmp") / f"hw{tmp_path.name[-20:]}"  # noqa: S108  # a socket's name is short
    sockets.mkdir(exist_ok=True)
    sockets.chmod(0o777)
    server = clusters.start(unix_socket_directories=str(sockets))
    words = f"host={sockets} port={server.port} user=postgres dbname=postgres"

    with session.connect(f"{words} password={server.password}") as connection:
        found = address.over_tcp(connection, f"{words} password={server.password}")
        alone = address.check(connection, f"{words} password={server.password}", words)
    server.stop()
    hba = sockets / "hba"
    hba.write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
    server.options["hba_file"] = str(hba)
    server.start()
    with session.connect(words) as connection:
        refused = address.check(connection, words, words)

    assert ("127.0.0.1", server.port, server.password) == (found.host, found.port, found.password)
    assert [CheckState.FAIL] * 2 == [alone.state, refused.state]
    assert "needs TCP" in refused.message


@pytest.mark.parametrize(
    ("dsn", "kind"),
    [
        ("service=nowhere", HostUnknownError),
        ("host=127.0.0.1 port=1 user=u password=hunter2 dbname=d", PostgresError),
        ("postgresql://u:hunter2@[", PostgresError),
        ("host=127.0.0.1,127.0.0.1 port=1,2,3 user=u password=hunter2", PostgresError),
    ],
)
def test_an_address_that_leads_nowhere_is_refused_without_its_password(
    parts: dict[str, str], dsn: str, kind: type[PostgresError]
) -> None:
    with pytest.raises(kind) as refused:
        address.resolve(dsn)

    said = f"{refused.value} {refused.value.detail} {refused.value.hint}"
    assert not re.search("hunter2", said)


def test_errors_name_the_server_that_the_environment_said(
    parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGHOST", "127.0.0.1")
    monkeypatch.setenv("PGPORT", "1")
    monkeypatch.setenv("PGDATABASE", "shop")

    with pytest.raises(PostgresError) as refused:
        session.connect("")

    assert "127.0.0.1:1/shop" == refused.value.detail
