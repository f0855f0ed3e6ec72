"""What the drill is played on: a database and a gateway of its own, or somebody's deployment."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gateway.crew import Crew, CrewError, environment, start_database, start_gateway
from gateway.drill.policy import MOUNT, TOOL, policy_text, tools_text
from gateway.drill.records import Deployment, problem_of
from gateway.drill.upstream import Upstream
from gateway.errors import AnswerLost, StoreUnavailable
from gateway.observe.text import one_line
from gateway.settings import load_settings
from gateway.store.embedded import attach

__all__ = ["Ground", "given_ground", "own_ground"]

_RESTART_TIMEOUT_S = 90.0
_PRINT = "fencegate drill --print-policy"


@dataclass(frozen=True, slots=True)
class Ground:
    """``restart`` crashes the database and brings it back; ``None`` where nobody can."""

    deployment: Deployment
    upstream: Upstream
    restart: Callable[[], None] | None


@contextlib.contextmanager
def own_ground(
    run: str, folder: Path, crew: Crew, make_key: Callable[[str], str] | None = None
) -> Iterator[Ground]:
    """Everything is started in ``folder``; ``crew`` stops the processes. ``make_key``: makes a
    gateway key in the database of this DSN; without keys workers must be on this machine."""
    upstream = Upstream(run).start()
    try:
        cluster = start_database(folder, crew)
        policies = folder / "policies"
        policies.mkdir()
        (policies / "drill.toml").write_text(policy_text(f"http://127.0.0.1:{upstream.port}"))
        (policies / "tools.toml").write_text(tools_text())
        key = make_key(cluster.dsn) if make_key is not None else None
        served = start_gateway(crew, policies, environment(FENCEGATE_DATABASE_URL=cluster.dsn))

        def restart() -> None:
            with crew.undisturbed():
                crew.watch(cluster.restart(immediate=True).pid)

        with _deployed(served.url, key, cluster.dsn, crew) as deployment:
            yield Ground(deployment, upstream, restart)
    finally:
        upstream.stop()


@contextlib.contextmanager
def given_ground(
    run: str,
    url: str,
    key: str | None,
    listen: tuple[str, int],
    restart: str | None,
    crew: Crew,
) -> Iterator[Ground]:
    """Somebody's deployment. Raises `CrewError` that names the mend where something is missing."""
    _check_address(url, key)
    dsn = _dsn()
    try:
        upstream = Upstream(run, *listen).start()
    except OSError as error:
        host, port = listen
        raise CrewError(
            f"the upstream cannot listen on {host}:{port} ({error.strerror}); name another "
            "address with --listen, and the same one in the policy"
        ) from error
    try:
        with _deployed(url, key, dsn, crew) as deployment:
            _check(deployment, run, listen)
            try:
                yield Ground(deployment, upstream, None if restart is None else _command(restart))
            finally:
                _cancel_rest(deployment, run)
    finally:
        upstream.stop()


@contextlib.contextmanager
def _deployed(url: str, key: str | None, dsn: str, crew: Crew) -> Iterator[Deployment]:
    deployment = Deployment(url, key, dsn, crew.undisturbed)
    try:
        yield deployment
    finally:
        deployment.close()


def _check_address(url: str, key: str | None) -> None:
    """That there can be a gateway of this address and key."""
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        # Reading the port judges it; httpx judges the rest.
        good = bool(plain and parts.hostname and parts.port != 0 and httpx.URL(url).host)
    except (ValueError, httpx.InvalidURL):
        good = False
    if not good or "@" in parts.netloc or parts.query or parts.fragment:
        raise CrewError(
            f"{one_line(url)} is no address of a gateway; write it like http://127.0.0.1:8080"
        )
    if parts.scheme != "http":
        raise CrewError(
            f"{url} is not an http:// address; the drill cuts connections that it can read, so "
            "give the gateway's own address, behind its TLS proxy"
        )
    if key is not None and not (key.isascii() and key.isprintable()):
        raise CrewError(
            "the key has a character that no key has; give one that `fencegate keys add` printed"
        )


def _cancel_rest(deployment: Deployment, run: str) -> None:
    """What was enqueued and could not be played to its end must not wait for another drill."""
    with contextlib.suppress(CrewError):
        _cancel(deployment, run)


def _cancel(deployment: Deployment, run: str) -> httpx.Response:
    wish = {"session": f"drill:{run}", "reason": "the drill has ended"}
    return deployment.post("/v1/jobs/cancel", wish)


def _dsn() -> str:
    settings = load_settings()
    if settings.database_url is not None:
        return settings.database_url
    running = attach(settings.data_dir)
    if running is None:
        raise CrewError(
            "the audit is read from the gateway's database; set FENCEGATE_DATABASE_URL (or "
            "FENCEGATE_DATA_DIR, where it is the embedded one)"
        )
    return running.dsn


def _check(deployment: Deployment, run: str, listen: tuple[str, int]) -> None:
    """That the drill's policy and tool are there, and that the database is the gateway's."""
    _check_policy(deployment, run, listen)
    claim = {"worker": "drill", "claim": "00000000-0000-4000-8000-000000000000", "limit": 1}
    answer = deployment.post("/v1/jobs/claim", {**claim, "tools": [TOOL]})
    if problem_of(answer) == "tool-unknown":
        raise CrewError(
            f"the gateway has no tool {TOOL!r}; add what `{_PRINT}` prints to tools.toml, and "
            "restart it"
        )
    if answer.status_code != 200:
        raise CrewError(f"the gateway answers a claim with {answer.status_code}: {answer.text}")
    answer = _cancel(deployment, run)  # there is nothing yet, but later there may be
    if answer.status_code != 200:
        raise CrewError(f"the gateway answers a cancel with {answer.status_code}: {answer.text}")
    try:
        deployment.check_database()
    except (StoreUnavailable, AnswerLost) as error:
        raise CrewError(
            f"the audit cannot be read ({error}); set FENCEGATE_DATABASE_URL to the gateway's"
        ) from error


def _check_policy(deployment: Deployment, run: str, listen: tuple[str, int]) -> None:
    answer = deployment.get(f"{MOUNT}/run")
    problem = problem_of(answer)
    if answer.status_code == 401:
        raise CrewError(
            "the gateway refuses the key; give one that `fencegate keys add` printed, with --key "
            "or in FENCEGATE_KEY"
        )
    if problem == "forbidden":
        raise CrewError(f"the gateway refuses the key. {answer.json()['detail']}")
    if problem == "no-policy":
        raise CrewError(
            f"the gateway has no policy for {MOUNT}; add what `{_PRINT}` prints to its policies, "
            "and restart it"
        )
    host, port = listen
    if answer.status_code != 200:
        raise CrewError(
            f"the gateway cannot reach the drill's upstream on {host}:{port} "
            f"({answer.status_code} {problem}); name an address that it can reach with --listen, "
            "and the same one in the policy"
        )
    if answer.text.find(run) < 0:
        raise CrewError(
            f"behind {MOUNT} somebody else answers, not this drill; end the other drill, or make "
            f"the policy's upstream http://{host}:{port}"
        )


def _command(line: str) -> Callable[[], None]:
    def restart() -> None:
        try:
            done = subprocess.run(
                line, shell=True, capture_output=True, text=True, timeout=_RESTART_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise CrewError(
                f"--restart-database took more than {_RESTART_TIMEOUT_S:.0f} s: {line}"
            ) from None
        if done.returncode != 0:
            raise CrewError(f"--restart-database failed ({done.returncode}): {done.stderr}")

    return restart
