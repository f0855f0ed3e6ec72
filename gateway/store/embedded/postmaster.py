"""Is a server running here? Reading `postmaster.pid` and the process table.

`postmaster.pid` outlives a killed server and its pid may have gone to some other process since (in
containers it regularly does), so a pid counts only if that process works *in this* data directory:
PostgreSQL's processes keep it as their current directory.
"""

import os
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from gateway.store.embedded.errors import EmbeddedPostgresError

__all__ = [
    "Postmaster",
    "alive",
    "answers",
    "clear_stale",
    "read_postmaster",
    "serving",
    "wait_gone",
]

_PROC = Path("/proc")
_POLL_S = 0.01
_ANSWER_TIMEOUT_S = 5.0
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)  # PostgreSQL's protocol: length, request code
# Backends of a killed postmaster notice at once; one deep in a statement may take a while.
_ORPHANS_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The lines of `postmaster.pid` that matter here."""

    pid: int
    port: int
    ready: bool


def read_postmaster(pgdata: Path) -> Postmaster | None:
    """None while there is no file or it is not written to its end."""
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
        return Postmaster(int(lines[0]), int(lines[3]), lines[7].strip() == "ready")
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except IndexError:  # still starting: the status line comes last
        return None


def serving(pgdata: Path) -> int | None:
    """The pid of the live postmaster of this data directory."""
    try:
        pid = int((pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return pid if alive(pid) and _works_in(pid, pgdata) else None


def clear_stale(pgdata: Path, socket_dir: Path) -> None:
    """Make way for a new server. Call only under the lock and when `serving` is None.

    Orphaned backends of a killed postmaster still write to the files, so they are waited for. Only
    then may its lock files go: PostgreSQL's own check through them would refuse to start when the
    pid lives on as some other process, or as a dead one that its parent has not waited for.
    """
    if not (pgdata / "postmaster.pid").exists():
        return
    deadline = time.monotonic() + _ORPHANS_TIMEOUT_S
    while orphans := _processes_in(pgdata):
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"processes {orphans} of a killed server still work in {pgdata}. "
                "Mend: wait for them or end them, then start again"
            )
        time.sleep(_POLL_S)
    if _PROC.is_dir():  # elsewhere nothing proves that nobody works there: leave it to PostgreSQL
        for lock in (pgdata / "postmaster.pid", *socket_dir.glob(".s.PGSQL.*")):
            lock.unlink(missing_ok=True)


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended but was not waited for yet does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, but there
    state = _state(pid)
    return state is not None and state not in "ZX"


def answers(host: str, port: int) -> bool:
    """Whether a server takes connections: it is asked for TLS, and says yes or no in one byte.

    The status line in `postmaster.pid` alone does not tell: it stays when the server is killed.
    """
    try:
        with socket.create_connection((host, port), _ANSWER_TIMEOUT_S) as connection:
            connection.sendall(_SSL_REQUEST)
            return connection.recv(1) in (b"N", b"S")
    except OSError:
        return False


def wait_gone(pid: int, timeout_s: float) -> bool:
    """Wait until the process has ended; False if it has not in time."""
    deadline = time.monotonic() + timeout_s
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _state(pid: int) -> str | None:
    """One letter, as in ps; None if there is no such process."""
    if _PROC.is_dir():
        try:
            # "pid (name) S ...": the name may hold spaces and parentheses
            return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return None
    done = subprocess.run(
        ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()[:1] or None


def _works_in(pid: int, pgdata: Path) -> bool:
    if _PROC.is_dir():
        return _current_dir(pid) == os.path.realpath(pgdata)
    done = subprocess.run(
        ["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return str(pgdata) in done.stdout and "postgres" in done.stdout


def _processes_in(pgdata: Path) -> list[int]:
    if not _PROC.is_dir():
        return []
    home = os.path.realpath(pgdata)
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    # A shell whose current directory is the data directory is no server, but only server
    # programs are called postgres.
    return [pid for pid in pids if _current_dir(pid) == home and _name(pid) == "postgres"]


def _current_dir(pid: int) -> str | None:
    try:
        return str((_PROC / str(pid) / "cwd").readlink())
    except OSError:  # gone, or another user's
        return None


def _name(pid: int) -> str | None:
    try:
        return (_PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return None
