"""The container files are valid and say the same as the local runtime; no engine is needed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import resources
from pathlib import Path

import jsonschema
import pytest
import yaml

from headwater.project.settings import load

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict] = COMPOSE["services"]
SERVERS = ("postgres", "kafka", "connect", "opensearch", "valkey")
SOURCE_IN_IMAGE = Path("/opt/headwater/source")
# `${env:NAME}` is not ours: it is Kafka Connect's way to name a secret
VARIABLE = re.compile(r"(?<!\$)\$\{(?!env:)(\w+)(:[-?])?")

each_service = pytest.mark.parametrize("name", sorted(SERVICES))


def example_variables() -> dict[str, str]:
    lines = (DOCKER / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_file_is_valid_by_the_compose_specification():
    folder = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    errors = jsonschema.validators.validator_for(schema)(schema).iter_errors(COMPOSE)

    assert [] == [f"{error.json_path}: {error.message}" for error in errors]


def test_every_part_of_the_path_is_there():
    assert {*SERVERS, "shop", "spark"} == set(SERVICES)


@each_service
def test_images_are_pinned_and_name_no_registry(name):
    image, _, tag = SERVICES[name]["image"].partition(":")

    assert (True, True) == (bool(tag) and tag != "latest", "." not in image.split("/")[0])


@each_service
def test_what_the_repository_must_provide_exists(name):
    service = SERVICES[name]
    build = service.get("build")
    sources = [mount.split(":")[0] for mount in service["volumes"] if mount.startswith(".")]
    files = [DOCKER / source for source in sources]
    files += [DOCKER / build["context"] / build["dockerfile"]] if build else []

    assert [] == [str(file) for file in files if not file.is_file()]


@each_service
def test_ports_are_published_on_loopback_only(name):
    ports = SERVICES[name].get("ports", [])

    assert [] == [port for port in ports if not port.startswith("127.0.0.1:")]


@each_service
def test_memory_is_limited(name):
    assert re.fullmatch(r"\d+[mg]", SERVICES[name]["mem_limit"])


@each_service
def test_a_service_waits_for_what_it_needs(name):
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        assert ("service_healthy", True) == (how["condition"], needed in SERVICES)


@each_service
def test_health_is_asked_for_and_trouble_ends_in_a_restart(name):
    service = SERVICES[name]
    check = service["healthcheck"]

    assert "unless-stopped" == service["restart"]
    assert {"test", "interval", "timeout", "retries"} <= set(check)


def test_named_volumes_are_declared_and_used():
    mounts = (mount.split(":")[0] for service in SERVICES.values() for mount in service["volumes"])
    used = {mount for mount in mounts if not mount.startswith(".")}

    assert set(COMPOSE["volumes"]) == used


def test_variables_are_exactly_those_of_the_example():
    text = (DOCKER / "compose.yaml").read_text() + (DOCKER / "headwater.toml").read_text()

    assert set(example_variables()) == {name for name, _ in VARIABLE.findall(text)}


def test_a_secret_has_no_default_and_is_refused_when_missing():
    text = (DOCKER / "compose.yaml").read_text()
    operators = {sign for name, sign in VARIABLE.findall(text) if name.endswith("PASSWORD")}

    assert {":?"} == operators


def test_the_file_with_real_secrets_is_never_committed():
    command = ["git", "check-ignore", "--quiet", "docker/.env"]

    assert 0 == subprocess.run(command, cwd=ROOT, check=False).returncode


def test_configuration_equals_the_templates_of_the_local_runtime():
    command = [sys.executable, "docker/render.py", "--check"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, "", "") == (answer.returncode, answer.stdout, answer.stderr)


def test_the_settings_reach_every_server_by_the_name_of_its_service():
    settings = load(DOCKER / "headwater.toml", environ=example_variables())
    services = settings.services
    addresses = {
        "postgres": settings.for_source("shop").dsn,
        "kafka": services.kafka.address,
        "connect": services.connect.address,
        "opensearch": services.search.address,
        "valkey": services.cache.address,
    }

    for name, address in addresses.items():
        assert address is not None
        assert re.search(rf"(^|//|@){name}:\d+", address.get_secret_value())


def test_the_views_of_the_containers_belong_to_the_source_they_name():
    settings = load(DOCKER / "headwater.toml", environ=example_variables())
    views = (ROOT / settings.views_path.relative_to(SOURCE_IN_IMAGE)).read_text()

    assert all(f'source(\n    "{name}"' in views for name in settings.source)


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_the_command_line_has_what_the_containers_use(command):
    asked = [sys.executable, "-m", "headwater", command, "--help"]
    answer = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)

    assert (0, True) == (answer.returncode, "--config" in answer.stdout)


def test_the_image_holds_what_the_job_names():
    dockerfile = (DOCKER / "Dockerfile").read_text()
    views = tomllib.loads((DOCKER / "headwater.toml").read_text())["project"]["views"]
    copied = {
        word
        for line in dockerfile.splitlines()
        if line.startswith("COPY")
        for word in line.split()[1:-1]
        if not word.startswith("--")
    }
    shipped = (ROOT / ".dockerignore").read_text().splitlines()

    assert [] == [path for path in copied if not (ROOT / path).exists()]
    assert [] == [path for path in copied if f"!{path}" not in shipped and "/" not in path]
    assert (ROOT / Path(views).relative_to(SOURCE_IN_IMAGE)).is_file()


def test_the_docker_client_accepts_the_file():
    """Needs the compose plugin, but no engine."""
    docker = shutil.which("docker")
    probe = [docker or "docker", "compose", "version"]
    if docker is None or subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("no docker client with the compose plugin")
    command = [docker, "compose", "--env-file", ".env.example", "config", "--quiet"]
    answer = subprocess.run(command, cwd=DOCKER, capture_output=True, text=True, check=False)

    assert (0, "") == (answer.returncode, answer.stderr)
