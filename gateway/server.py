"""`fencegate serve`: from settings to a listening process, and its orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import math
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import uvicorn

from gateway import faults
from gateway.app import Gateway, open_gateway
from gateway.banner import banner, misnamed
from gateway.errors import ConfigurationError
from gateway.http1 import Http1Protocol
from gateway.observe import crash, log
from gateway.policy.compiled import Policies
from gateway.policy.errors import PolicyErrors
from gateway.policy.tools import Tools, load_all
from gateway.settings import Settings
from gateway.store import embedded, session
from gateway.store.database import Database
from gateway.store.migrations import Current

try:
    import resource as _resource

    resource: ModuleType | None = _resource
except ImportError:  # Windows
    resource = None

__all__ = ["serve"]

_KEEP_ALIVE_S = 75
"""Longer than the 60 s idle limit of common balancers, so that they close first, not we."""

_BACKLOG = 2048

_YOUNG_OBJECTS = 10_000
"""Objects that are made beyond those that are freed before the collector looks at them: some 2 MB,
and a millisecond. A thousand commands at a time occupy several times as many by themselves."""

_OTHER_FILES = 512
"""Open files beside callers and attempts: streams, probes, the database, late readers, refusals."""


def serve(
    settings: Settings, policies_dir: Path, host: str, port: int, *, allow_failpoints: bool = False
) -> None:
    """Serve until SIGTERM or SIGINT. ``port`` 0 takes a free one, printed at start.

    Raises ``ConfigurationError`` or ``StoreUnavailable`` where it cannot start; the text names the
    mend.
    """
    log.configure(settings.log_level, messages=False)
    armed = faults.checked(settings.failpoints, allowed=allow_failpoints)
    if armed:
        log.event("failpoints_armed", level="warning", failpoints=settings.failpoints)
    faults.arm(armed)
    policies, tools = _files(policies_dir)
    dsn = _database(settings)
    # uvloop by name: the loop must be the one that was measured, not the one that was found.
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(settings, policies, tools, dsn, host, port))


async def _serve(
    settings: Settings, policies: Policies, tools: Tools, dsn: str, host: str, port: int
) -> None:
    asyncio.get_running_loop().set_exception_handler(_note_loop_error)
    await _check_schema(settings, dsn)
    gateway = await open_gateway(settings, policies, tools, dsn)
    try:
        snapshot = gateway.keys.current()
        authenticated = snapshot is not None and snapshot.anonymous is None
        if not authenticated and not _is_loopback(host):
            raise ConfigurationError(
                f"without gateway keys it serves loopback only, not {host}; make one first: "
                "fencegate keys add --tenant default --name NAME"
            )
        listener = _listen(host, port)
    except BaseException:
        await gateway.close()
        raise
    with contextlib.closing(listener):
        print(
            banner(
                _url(listener),
                dsn,
                policies,
                tools,
                data_dir=settings.data_dir if settings.database_url is None else None,
                authenticated=authenticated,
                warnings=misnamed(snapshot, policies) if snapshot is not None else (),
            ),
            flush=True,
        )
        _collect_seldom()
        await _Server(gateway, settings).serve(sockets=[listener])
    await gateway.close()


def _collect_seldom() -> None:
    """Let the garbage collector pass over what stays for good, and look for new cycles less often.
    By default it goes through all modules again and again, an eighth of a command's time. What a
    command leaves behind is freed without it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)


def _note_loop_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """In place of the loop's own line, which shows arguments: bytes of requests among them."""
    said, where = crash.loop_error(context)
    log.event("loop_error", level="error", said=said, exception=where)


class _Server(uvicorn.Server):
    """uvicorn, told to stop admitting the moment a signal arrives."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        super().__init__(
            uvicorn.Config(
                gateway,
                interface="asgi3",
                http=_limited(settings),
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(settings.drain_s),
                backlog=_BACKLOG,
            )
        )
        self._gateway = gateway

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.start()
        await super().startup(sockets=sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gateway.stop_admitting()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was handled is not raised again behind it: the process
        still has outcomes to record."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


def _limited(settings: Settings) -> type[Http1Protocol]:
    """The protocol with the limit of all connections: the setting's, or what the open files leave
    beside connections to upstreams and to the database. The soft limit of open files is raised to
    the hard one first; it is that low for programs that use ``select``."""
    limit = settings.max_connections
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        if soft != resource.RLIM_INFINITY:
            # Half of a small number: commands need a connection of their own to the upstream.
            limit = min(limit, max(soft // 2, soft - settings.max_attempts - _OTHER_FILES))
        if limit < settings.max_connections:
            log.event("fewer_connections", level="warning", limit=limit, open_files=soft)
    return type("Http1Protocol", (Http1Protocol,), {"connection_limit": limit})


def _files(directory: Path) -> tuple[Policies, Tools]:
    """What the folder says; every mistake of every file at once."""
    try:
        return load_all(directory, os.environ)
    except PolicyErrors as error:
        raise ConfigurationError(f"the policies cannot be used:\n{error}") from error


def _database(settings: Settings) -> str:
    """The DSN to use; starts or finds the embedded server where none is configured. A server that
    was started stays when the process ends, and the next one finds it."""
    if settings.database_url is not None:
        return settings.database_url
    try:
        return embedded.start(settings.data_dir, bin_dir=settings.postgres_bin).dsn
    except embedded.EmbeddedPostgresError as error:
        raise ConfigurationError(str(error)) from error


async def _check_schema(settings: Settings, dsn: str) -> None:
    """Migrate our own embedded database; refuse to touch or to serve another that is not ours."""
    if settings.database_url is None:
        await session.migrate_database(dsn)
        return
    database = await Database.open(dsn, size=1)
    try:
        status = await session.schema_status(database)
    finally:
        await database.close()
    if not isinstance(status, Current):
        raise ConfigurationError(status.message)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            "choose others with --host, --port"
        ) from error
    listener.listen(_BACKLOG)
    listener.set_inheritable(True)
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if sys.platform == "win32":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop
