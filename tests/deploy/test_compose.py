"""docker-compose.yml, without an engine: its schema, and that its names, ports, paths, variables
and commands are those of the project."""

import hashlib
import os
import re
import shlex
import subprocess
import sys
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import urlopen

import pytest

from examples.legacy_api.server import _arguments
from gateway.cli.main import _parser
from gateway.core.secret import revealed
from gateway.policy.loader import load
from gateway.settings import PREFIX, Settings
from tests.deploy.files import ROOT, compose, image, seconds
from tests.kit.db import Server, execute
from tests.kit.gateway import gateway, policy

COMPOSE = compose()
SERVICES = COMPOSE.services
IMAGE = image()
GATEWAYS = ["gateway-1", "gateway-2"]
OURS = sorted(set(SERVICES) - {"postgres"})
PORT = IMAGE.last("EXPOSE").arguments[0]


def environment(service: str) -> dict[str, str]:
    return {name: str(value) for name, value in SERVICES[service].get("environment", {}).items()}


def mounts(service: str) -> list[tuple[str, str, str]]:
    """Source, target and mode."""
    found = []
    for text in SERVICES[service].get("volumes", []):
        source, target, *mode = text.split(":")
        found.append((source, target, *(mode or ["rw"])))
    return found


def option(service: str, name: str) -> str:
    command: list[str] = SERVICES[service]["command"]
    return command[command.index(name) + 1]


# --- the schema, and what it cannot say -----------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("restart: unless-stopped", "restrat: unless-stopped"),
        ("service_healthy", "service_happy"),
        ("stop_grace_period: 45s", "stop_grace_period: 45 moments"),
        ("retries: 30", "retrys: 30"),
        ("127.0.0.1:8081:8080", "127.0.0.1:here:8080"),
    ],
)
def test_the_schema_refuses_mistakes(before: str, after: str) -> None:
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    assert before in text
    with pytest.raises(ValueError, match=r".+"):
        compose(text=text.replace(before, after))


def test_the_services_are_these() -> None:
    assert set(SERVICES) == {"postgres", "migrate", *GATEWAYS, "cli", "legacy-api"}
    differ = {"ports"}
    first, second = (
        {key: value for key, value in SERVICES[name].items() if key not in differ}
        for name in GATEWAYS
    )
    assert first == second


CONDITIONS = {
    "postgres": "service_healthy",
    "migrate": "service_completed_successfully",
    "legacy-api": "service_started",
}


def test_every_dependency_is_a_service_under_the_condition_that_fits_it() -> None:
    wanted: list[tuple[str, str, str]] = [
        (name, other, how["condition"])
        for name, service in SERVICES.items()
        for other, how in service.get("depends_on", {}).items()
    ]
    assert {(name, other) for name, other, _ in wanted} == {
        ("migrate", "postgres"),
        ("gateway-1", "migrate"),
        ("gateway-2", "migrate"),
        # What is depended on is stopped last: the drain still has an upstream to hear from.
        ("gateway-1", "legacy-api"),
        ("gateway-2", "legacy-api"),
        ("cli", "migrate"),
    }
    assert [(other, how) for _, other, how in wanted if CONDITIONS[other] != how] == []


def test_what_is_waited_for_can_come() -> None:
    check: list[str] = SERVICES["postgres"]["healthcheck"]["test"]
    assert check[:2] == ["CMD", "pg_isready"]
    given = environment("postgres")
    assert f"--username={given['POSTGRES_USER']}" in check
    assert f"--dbname={given['POSTGRES_DB']}" in check
    # One that is started again when it has ended never "completes".
    assert "restart" not in SERVICES["migrate"]


# --- the database ---------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [*GATEWAYS, "migrate", "cli"])
@pytest.mark.parametrize("password", [None, "another-1", "p%40ss word", "a:b/c@d?e#f&g=h", "50%"])
def test_the_database_and_its_clients_are_given_the_same_password_as_it_is(
    service: str, password: str | None
) -> None:
    services = compose({} if password is None else {"POSTGRES_PASSWORD": password}).services
    server, client = (services[name]["environment"] for name in ("postgres", service))
    url = urlsplit(client[f"{PREFIX}DATABASE_URL"])
    assert (url.scheme, url.hostname, url.port) == ("postgresql", "postgres", 5432)
    assert (url.username, url.path) == (server["POSTGRES_USER"], f"/{server['POSTGRES_DB']}")
    assert url.password is None  # it would be decoded there
    expected = "dev-only-password" if password is None else password
    assert client["PGPASSWORD"] == server["POSTGRES_PASSWORD"] == expected


@pytest.mark.parametrize("password", ["p%40ss word", "a:b/c@d?e#f&g=h", "50%"])
def test_every_command_takes_the_password_of_the_environment(
    postgres: Server, password: str
) -> None:
    with postgres.database(migrated=False) as dsn:
        name = "client_" + hashlib.sha256(password.encode()).hexdigest()[:8]
        execute(dsn, f"create role {name} login superuser password '{password}'")
        try:
            address = urlsplit(dsn)
            without = address._replace(netloc=f"{name}@{address.netloc.rpartition('@')[2]}")
            env = {f"{PREFIX}DATABASE_URL": urlunsplit(without), "PGPASSWORD": password}
            wrong = env | {"PGPASSWORD": unquote(password) + "x"}
            assert cli(wrong, "migrate") != 0
            assert cli(env, "migrate") == 0
            assert cli(env, "keys", "list") == 0
            with (
                gateway(
                    env[f"{PREFIX}DATABASE_URL"], policy("http://127.0.0.1:9"), env=env
                ) as running,
                urlopen(f"{running.url}/readyz") as answer,
            ):
                assert answer.status == 200
        finally:
            execute(dsn, f"reassign owned by {name} to current_user; drop owned by {name}")
            execute(dsn, f"drop role {name}")


def cli(env: dict[str, str], *arguments: str) -> int:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    command = [sys.executable, "-m", "gateway.cli", *arguments]
    return subprocess.run(command, env=kept | env, capture_output=True, check=False).returncode


def test_the_database_is_kept_and_reached_only_from_inside() -> None:
    assert SERVICES["postgres"]["image"].split(":")[0] == "postgres"
    major = int(SERVICES["postgres"]["image"].split(":")[1])
    assert major >= 18
    # From 18 on the image declares this folder; a volume below it would not be used.
    assert mounts("postgres") == [("database", "/var/lib/postgresql", "rw")]
    assert "ports" not in SERVICES["postgres"]


def test_passwords_are_variables_whose_defaults_say_what_they_are() -> None:
    text = (ROOT / "docker-compose.yml").read_text("utf-8")
    defaults = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    assert set(defaults) == COMPOSE.variables == {"POSTGRES_PASSWORD", "LEGACY_TOKEN"}
    assert all(value.startswith("dev-only-") for value in defaults.values())


# --- ports, paths and variables -------------------------------------------------------------------


def test_published_ports_are_on_loopback_and_differ() -> None:
    published: list[tuple[str, ...]] = [
        (name, *text.split(":"))
        for name, service in SERVICES.items()
        for text in service.get("ports", [])
    ]
    assert [row for row in published if row[1] != "127.0.0.1"] == []
    assert len({row[2] for row in published}) == len(published) == 3
    inside = {name: port for name, _, _, port in published}
    assert inside == {
        "gateway-1": option("gateway-1", "--port"),
        "gateway-2": option("gateway-2", "--port"),
        "legacy-api": option("legacy-api", "--port"),
    }
    assert inside["gateway-1"] == PORT  # the port that the image's health check asks


def test_mounted_paths_exist_and_are_read_only_and_volumes_are_declared() -> None:
    used = set()
    for name in SERVICES:
        for source, target, mode in mounts(name):
            assert target.startswith("/")
            if source.startswith("."):
                assert (ROOT / source).is_dir(), f"{name}: {source}"
                assert mode == "ro", f"{name}: {source}"
            else:
                used.add(source)
    assert used == COMPOSE.volumes


def test_policies_are_mounted_where_the_gateway_looks() -> None:
    variables = dict(text.split("=", 1) for text in IMAGE.last("ENV").arguments)
    for name in GATEWAYS:
        ((_, target, _),) = mounts(name)
        assert target == variables[f"{PREFIX}POLICIES_DIR"]


@pytest.mark.parametrize("service", OURS)
def test_variables_of_ours_are_settings(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = environment(service)
    ours = {name for name in given if name.startswith(PREFIX)}
    assert {name.removeprefix(PREFIX).lower() for name in ours} <= set(Settings.model_fields)
    for name in list(os.environ):
        if name.startswith(PREFIX):
            monkeypatch.delenv(name)
    for name in ours:
        monkeypatch.setenv(name, given[name])
    Settings()  # and their values are taken


def test_a_gateway_is_given_the_time_that_its_drain_takes() -> None:
    for name in GATEWAYS:
        drain = float(environment(name)[f"{PREFIX}DRAIN_S"])
        assert seconds(SERVICES[name]["stop_grace_period"]) >= drain + 10


# --- what runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("service", [*GATEWAYS, "migrate"])
def test_commands_parse(service: str) -> None:
    assert "entrypoint" not in SERVICES[service]
    options = _parser().parse_args(SERVICES[service]["command"])
    if service in GATEWAYS:
        assert (options.host, str(options.port)) == ("0.0.0.0", PORT)


@pytest.mark.parametrize("service", OURS)
def test_ours_run_from_the_image_with_no_more_rights_than_they_need(service: str) -> None:
    found: dict[str, Any] = SERVICES[service]
    assert (found["build"], found["image"]) == (".", "fencegate:dev")
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "user", "cap_add", "network_mode", "pid"} & set(found)
    writable = {target for _, target, mode in mounts(service) if mode != "ro"}
    assert writable <= set(IMAGE.last("WORKDIR").arguments)  # the folder that its user owns


def test_only_gateways_are_asked_what_the_image_asks() -> None:
    for name in OURS:
        disabled = SERVICES[name].get("healthcheck") == {"disable": True}
        assert disabled == (name not in GATEWAYS)


def test_the_demo_api_is_the_examples() -> None:
    service = SERVICES["legacy-api"]
    python, path = service["entrypoint"]
    assert python == "python"
    assert ("./examples/legacy_api", path, "ro") in mounts("legacy-api")
    assert (ROOT / "examples/legacy_api/__main__.py").is_file()
    arguments = _arguments(service["command"])
    assert arguments.host == "0.0.0.0"
    assert str(arguments.ledger.parent) in IMAGE.last("WORKDIR").arguments


def test_the_policy_leads_to_the_demo_api_and_says_what_the_examples_says() -> None:
    api, gateway = environment("legacy-api"), environment("gateway-1")
    ((source, _, _),) = mounts("gateway-1")
    policies = load(ROOT / source, gateway)
    assert policies.warnings == ()
    (mount,) = policies.mounts
    assert mount.upstream.url == f"http://legacy-api:{option('legacy-api', '--port')}"
    fields = {name.lower(): value for name, value in revealed(mount.upstream.headers)}
    assert fields == {b"authorization": f"Bearer {api['LEGACY_TOKEN']}".encode()}
    mine, theirs = (
        (ROOT / folder / "legacy.toml").read_text("utf-8").partition("\nname ")[2]
        for folder in (source, "policies")
    )
    name = mine.replace("http://legacy-api:9001", "http://127.0.0.1:9001")
    assert re.sub(r"(?m)^#.*\nallow_networks = .*\n", "", name) == theirs
    own = mount.upstream.allow_networks
    assert all(not each.is_global and not each.is_link_local for each in own)


# --- the documents --------------------------------------------------------------------------------


def test_the_commands_of_the_documents_are_commands() -> None:
    lines = [
        shlex.split(line.partition(" #")[0])
        for page in ("README.md", "docs/settings.md")
        for line in re.findall(r"^docker compose .*$", (ROOT / page).read_text("utf-8"), re.M)
    ]
    runs = [line[2:] for line in lines if line[2] == "run"]
    assert len(lines) >= 4
    assert runs
    for _, flag, service, *arguments in runs:
        assert flag == "--rm"
        assert service == "cli"
        _parser().parse_args(arguments)


def test_the_addresses_of_the_documents_are_published() -> None:
    text = (ROOT / "docs/settings.md").read_text("utf-8")
    section = text.partition("## How do I run two of them in containers?")[2].partition("\n## ")[0]
    named = set(re.findall(r"http://127\.0\.0\.1:(\d+)/legacy/", section))
    assert named == {SERVICES[name]["ports"][0].split(":")[1] for name in GATEWAYS}
