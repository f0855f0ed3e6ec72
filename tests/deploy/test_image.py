"""The Dockerfile and its context, without an engine: what it copies, runs and ends up as."""

import http.server
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from gateway.cli.main import _parser
from gateway.settings import PREFIX, Settings
from tests.deploy.files import ROOT, Step, image

IMAGE = image()
BUILD, FINAL = IMAGE.stages


def ignored(name: str) -> bool:
    """What .dockerignore says of a top-level name; the last pattern that fits decides."""
    verdict = False
    for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#") and pattern.removeprefix("!") in ("*", name):
            verdict = not pattern.startswith("!")
    return verdict


def copied() -> list[str]:
    return [name for step in BUILD if step.name == "COPY" for name in step.arguments[:-1]]


def test_what_is_copied_exists_and_is_in_the_context() -> None:
    assert copied()
    assert [name for name in copied() if not (ROOT / name).exists() or ignored(name)] == []


def test_nothing_else_gets_into_the_context() -> None:
    assert ignored(".git")
    assert ignored(".venv")
    assert ignored(".env")
    assert ignored(".fencegate")
    listed = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert [line[1:] for line in listed if line.startswith("!")] == copied()


def test_everything_that_the_wheel_is_made_of_is_copied() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
    needed |= {"pyproject.toml", *project["project"]["license-files"]}
    assert needed <= set(copied())


def test_both_stages_have_one_python_and_it_is_one_that_the_project_takes() -> None:
    bases = {step.arguments[0] for stage in (BUILD, FINAL) for step in stage if step.name == "FROM"}
    assert bases == {"python:${PYTHON}-slim"}  # the virtual environment points to its Python
    assert IMAGE.arguments == {"PYTHON": "3.11"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == ">=3.11"


def test_the_final_stage_builds_nothing_and_takes_only_the_environment() -> None:
    (copy,) = [step for step in FINAL if step.name == "COPY"]
    assert copy == Step("COPY", ("/opt/fencegate", "/opt/fencegate"), False, ("--from=build",))
    assert [step.arguments[0] for step in FINAL if step.name == "RUN"] == ["install"]
    (made,) = [step.arguments for step in BUILD if step.arguments[:3] == ("python", "-m", "venv")]
    assert made[3:] == ("--without-pip", "/opt/fencegate")


def test_the_user_is_a_number_and_not_root() -> None:
    user, _, group = IMAGE.last("USER").arguments[0].partition(":")
    assert user.isdigit()
    assert int(user) > 0
    assert group.isdigit()
    assert int(group) > 0
    (folder,) = [step.arguments for step in FINAL if step.name == "RUN"]
    assert folder == ("install", "-d", "-o", user, "-g", group, *IMAGE.last("WORKDIR").arguments)


def test_the_entry_point_is_the_projects_command_in_exec_form() -> None:
    entry = IMAGE.last("ENTRYPOINT")
    assert entry.exec_form  # in shell form the signals would go to the shell
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert list(entry.arguments) == list(project["scripts"])


def test_the_default_command_parses_and_listens_where_the_image_says() -> None:
    command = IMAGE.last("CMD")
    assert command.exec_form
    options = _parser().parse_args(command.arguments)
    assert (options.host, str(options.port)) == ("0.0.0.0", *IMAGE.last("EXPOSE").arguments)


def test_its_variables_are_settings() -> None:
    pairs = [text.partition("=") for text in IMAGE.last("ENV").arguments]
    ours = {name.removeprefix(PREFIX).lower() for name, _, _ in pairs if name.startswith(PREFIX)}
    assert ours
    assert ours <= set(Settings.model_fields)


class Ready(http.server.BaseHTTPRequestHandler):
    status = 200
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_whether_it_is_ready(status: int, code: int, tmp_path: Path) -> None:
    """The very program of the image, but for the port: the test takes a free one."""
    check = IMAGE.last("HEALTHCHECK")
    assert check.exec_form
    assert check.arguments[:2] == ("python", "-c")
    (port,) = IMAGE.last("EXPOSE").arguments
    program = check.arguments[2]
    assert program.count(port) == 1
    handler = type("Handler", (Ready,), {"status": status, "asked": []})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = run(program.replace(port, str(server.server_port)), tmp_path)
        server.shutdown()
    assert (done, handler.asked) == (code, ["/readyz"])


def test_the_health_check_fails_where_nothing_listens(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Ready) as server:
        port = server.server_port
    assert run(IMAGE.last("HEALTHCHECK").arguments[2].replace("8080", str(port)), tmp_path) == 1


def run(program: str, cwd: Path) -> int:
    # A proxy of the environment must not be asked in place of the gateway.
    env = {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, "-I", "-c", program]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True).returncode
