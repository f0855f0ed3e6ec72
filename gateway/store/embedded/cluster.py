"""Starting, finding and stopping the server of a data directory."""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.store.embedded import postmaster, watchdog
from gateway.store.embedded.binaries import Binaries, find
from gateway.store.embedded.create import check_major, create, environment
from gateway.store.embedded.errors import EmbeddedPostgresError
from gateway.store.embedded.layout import HOST, Layout, State
from gateway.store.embedded.privileges import Account, choose

__all__ = ["Cluster", "attach", "start"]

# Durability is PostgreSQL's default (fsync, synchronous_commit, full_page_writes) and stays so.
_SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
    "jit": "off",  # compiling costs more than our short statements do
    "shared_preload_libraries": "",
    "cluster_name": "fencegate",
}

# Below the range that systems take ports of outgoing connections from (32768 up on Linux): a client
# that knocks on a stopped server's port could otherwise be given that very port as its own, talk to
# itself and keep the server from coming back.
_PORTS = range(20_000, 32_000)
_PORT_TRIES = 20
_START_TIMEOUT_S = 60.0  # 0.1 s after a clean stop; recovery of a busy log takes seconds
_POLL_S = 0.01
_SOCKET_PATH_LIMIT = 100  # sockaddr_un holds 104 bytes on BSD, 108 on Linux


@dataclass(frozen=True, slots=True)
class _Options:
    bin_dir: Path | None = None
    watchdog: bool = False
    port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Handles:
    """Child processes of this process, kept so that their ends are collected."""

    server: "subprocess.Popen[bytes]"
    watchdog: watchdog.Watchdog | None


# By the server's pid. A `Cluster` is a value that may be copied; these exist once.
_HANDLES: dict[int, _Handles] = {}


class _PortTaken(Exception):
    """Another process took the port between the look and the start."""


class _Ended(EmbeddedPostgresError):
    """The server ended while it was waited for."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running server.

    `dsn` names the role and database `fencegate` over loopback TCP and holds the password.
    `attached` tells that it was already running and this call only found it.
    """

    data_dir: Path
    dsn: str = field(repr=False)
    pid: int
    version: str
    port: int
    attached: bool
    _options: _Options = field(default_factory=_Options, repr=False, compare=False)

    def stop(self, *, timeout_s: float = 10, immediate: bool = False) -> None:
        """End the server; sessions are closed, open transactions rolled back.

        `immediate` ends it without a checkpoint, as a crash would (nothing committed is lost); it
        is also what happens after `timeout_s`. A server that has ended already is no error.
        """
        layout = Layout(self.data_dir)
        with layout.locked():
            if postmaster.serving(layout.pgdata) == self.pid:
                _end(self.pid, timeout_s, immediate)
            _collect(self.pid)
            _forget(layout, self.pid)

    def restart(self, *, timeout_s: float = 10, immediate: bool = False) -> "Cluster":
        """Stop (or find ended) and start again on the same port with the same settings."""
        self.stop(timeout_s=timeout_s, immediate=immediate)
        return _start(Layout(self.data_dir), replace(self._options, port=self.port))


def start(
    data_dir: Path,
    *,
    bin_dir: Path | None = None,
    watchdog: bool = False,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Cluster:
    """Make the database if there is none, and start its server if none is running.

    A server that runs already is attached to as it is: `port`, `settings` and `watchdog` then do
    not apply. With `watchdog` the server ends when this process does, however that happens;
    without, it goes on and the next `start` finds it. `settings` are `postgresql.conf` names.

    Raises `EmbeddedPostgresError`.
    """
    options = _Options(bin_dir, watchdog, port, dict(settings or {}))
    return _start(Layout(data_dir.absolute()), options)


def attach(data_dir: Path) -> Cluster | None:
    """The server that runs on this data directory; None if there is none."""
    layout = Layout(data_dir.resolve())
    if not layout.pgdata.is_dir():
        return None
    try:
        with layout.locked():
            return _attach(layout, _Options())
    except OSError as error:
        raise _unusable(layout, error) from error


def _start(layout: Layout, options: _Options) -> Cluster:
    if os.name != "posix":
        raise EmbeddedPostgresError(
            "the embedded database needs Linux or macOS. Mend: use a PostgreSQL server of your own "
            "(FENCEGATE_DATABASE_URL)"
        )
    try:
        layout.create()
        layout = Layout(layout.root.resolve())
        with layout.locked():
            return _attach(layout, options) or _launch(layout, options)
    except OSError as error:
        raise _unusable(layout, error) from error


def _unusable(layout: Layout, error: OSError) -> EmbeddedPostgresError:
    return EmbeddedPostgresError(
        f"the data directory {layout.root} cannot be used: {error}. Mend: check its owner, mode "
        "and free space, or choose another one (FENCEGATE_DATA_DIR)"
    )


def _attach(layout: Layout, options: _Options) -> Cluster | None:
    pid = postmaster.serving(layout.pgdata)
    if pid is None:
        return None
    try:
        found = _wait_ready(layout, pid, log_start=None)
    except _Ended:  # it was being stopped, by a watchdog or by hand
        return None
    state = layout.read_state()
    if state is None or state.pid != pid:  # whoever started it died before it could write this
        version = (layout.pgdata / "PG_VERSION").read_text().strip()
        state = State(layout.dsn(found.port), pid, found.port, version, str(layout.run))
        layout.write_state(state)
    return Cluster(layout.root, state.dsn, pid, state.version, state.port, True, options)


def _launch(layout: Layout, options: _Options) -> Cluster:
    binaries = find(options.bin_dir)
    _collect_ended()
    postmaster.clear_stale(layout.pgdata, layout.run)
    account = choose(binaries, layout.root, layout.pgdata)
    if layout.pgdata.exists():
        check_major(layout, binaries)
    else:
        create(layout, binaries, account)
    if (previous := layout.read_state()) is not None:
        _forget(layout, previous.pid)  # it was killed; nobody tidied up behind it
    for port in _ports(options.port, layout.read_port()):
        try:
            return _run(layout, binaries, account, options, port)
        except _PortTaken:
            continue
    wanted = f"port {options.port} is" if options.port else f"{_PORT_TRIES} ports tried were all"
    raise EmbeddedPostgresError(
        f"{wanted} in use on {HOST}. Mend: end what uses it, or let a free port be chosen"
    )


def _run(
    layout: Layout, binaries: Binaries, account: Account, options: _Options, port: int
) -> Cluster:
    """One try on one port. Raises `_PortTaken`."""
    dsn = layout.dsn(port)
    socket_dir = _socket_dir(layout, account, port)
    log_fd = layout.open_log()
    try:
        log_start = os.fstat(log_fd).st_size
        settings = {**_SETTINGS, "unix_socket_directories": str(socket_dir), "port": str(port)}
        server = subprocess.Popen(
            account.command("postgres", "-D", layout.pgdata, *_flags(settings, options.settings)),
            cwd="/",
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            **account.switch,
        )
        guard = watchdog.watch(server.pid, log_fd) if options.watchdog else None
    finally:
        os.close(log_fd)
    _HANDLES[server.pid] = _Handles(server, guard)
    try:
        _wait_ready(layout, server.pid, log_start)
        layout.write_state(State(dsn, server.pid, port, binaries.version, str(socket_dir)))
        layout.write_port(port)
    except BaseException:
        _end(server.pid, timeout_s=0, immediate=True)
        _collect(server.pid)
        raise
    return Cluster(layout.root, dsn, server.pid, binaries.version, port, False, options)


def _flags(*layers: Mapping[str, str]) -> list[str]:
    merged = {name: value for layer in layers for name, value in layer.items()}
    return [part for name, value in merged.items() for part in ("-c", f"{name}={value}")]


def _wait_ready(layout: Layout, pid: int, log_start: int | None) -> postmaster.Postmaster:
    """Wait until the server takes connections. `log_start`: where its log begins, if it is ours."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        found = postmaster.read_postmaster(layout.pgdata)
        if found and found.pid == pid and found.ready and postmaster.answers(HOST, found.port):
            return found
        ended = not _runs(pid)
        if ended or time.monotonic() > deadline:
            said = layout.log_tail(log_start or 0)
            if ended and log_start is not None and "could not create any TCP/IP sockets" in said:
                raise _PortTaken
            what = "ended" if ended else f"was not ready within {_START_TIMEOUT_S:.0f} s"
            raise (_Ended if ended else EmbeddedPostgresError)(
                f"PostgreSQL {what} while it was starting in {layout.root}:\n{said}\n"
                f"Mend: what the lines above ask for; the whole log is {layout.log}"
            )
        time.sleep(_POLL_S)


def _runs(pid: int) -> bool:
    handles = _HANDLES.get(pid)
    return postmaster.alive(pid) if handles is None else handles.server.poll() is None


def _end(pid: int, timeout_s: float, immediate: bool) -> None:
    """Fast shutdown, then immediate shutdown, then kill; PostgreSQL recovers from each of them."""
    steps = [(signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)]
    if not immediate:
        steps.insert(0, (signal.SIGINT, timeout_s))
    for number, patience_s in steps:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        if postmaster.wait_gone(pid, patience_s):
            return
    raise EmbeddedPostgresError(f"the server process {pid} does not end, not even when killed")


def _collect(pid: int) -> None:
    handles = _HANDLES.pop(pid, None)
    if handles is not None:
        handles.server.wait()
        if handles.watchdog is not None:
            handles.watchdog.end()


def _collect_ended() -> None:
    """Servers that were killed are zombies until then, and PostgreSQL takes a zombie for alive."""
    for pid, handles in list(_HANDLES.items()):
        if handles.server.poll() is not None:
            _collect(pid)


def _forget(layout: Layout, pid: int) -> None:
    state = layout.read_state()
    if state is not None and state.pid == pid:
        layout.state_file.unlink(missing_ok=True)
        if Path(state.socket_dir) != layout.run:
            shutil.rmtree(state.socket_dir, ignore_errors=True)


def _socket_dir(layout: Layout, account: Account, port: int) -> Path:
    """A folder for the Unix socket, whose path has to be short, for the server's account alone."""
    folder = layout.run
    if len(os.fsencode(folder / f".s.PGSQL.{port}.lock")) > _SOCKET_PATH_LIMIT:
        # Not $TMPDIR: that may be long as well, or closed to the server's account.
        folder = Path(tempfile.mkdtemp(prefix="fencegate-", dir="/tmp"))
    else:
        folder.mkdir(mode=0o700, exist_ok=True)
    account.own(folder)
    return folder


def _ports(wanted: int | None, previous: int | None) -> list[int]:
    """Ports to try, in order; the last one used comes first, so that a DSN stays good."""
    if wanted is not None:
        return [wanted]
    candidates = [] if previous is None else [previous]
    candidates += random.sample(_PORTS, _PORT_TRIES)
    return [port for port in candidates if _is_free(port)]


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as PostgreSQL does
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
