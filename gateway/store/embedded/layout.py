"""What lies where in a data directory, and its small files.

DIR/lock           held while a server is started or stopped
DIR/password       0600, of the role `fencegate`
DIR/server.json    0600, the running server (DSN included) for other processes of this user
DIR/postgres.log   what the server and initdb print
DIR/pgdata/        PostgreSQL's own data directory
DIR/run/           Unix socket (elsewhere if DIR's path is too long for one)
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from gateway.store.embedded.errors import EmbeddedPostgresError

__all__ = ["DATABASE", "HOST", "ROLE", "Layout", "State"]

ROLE = "fencegate"
DATABASE = "fencegate"
HOST = "127.0.0.1"
_LOG_LIMIT_BYTES = 10 * 1024 * 1024  # rotated at a start: one older file is kept


@dataclass(frozen=True, slots=True)
class State:
    """The running server, as `server.json` tells it."""

    dsn: str
    pid: int
    port: int
    version: str
    socket_dir: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths inside one data directory (absolute, links resolved)."""

    root: Path

    @property
    def pgdata(self) -> Path:
        return self.root / "pgdata"

    @property
    def unfinished(self) -> Path:
        """Where a cluster is made before it is renamed to `pgdata`."""
        return self.root / "pgdata.new"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def password_file(self) -> Path:
        return self.root / "password"

    @property
    def state_file(self) -> Path:
        return self.root / "server.json"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    def create(self) -> None:
        """Make the folder if it is missing; one that exists keeps its mode.

        Root's own is 0711, so that the unprivileged account that the server runs under can pass
        through it; every file in it is 0600.
        """
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One starter or stopper at a time, over all processes and threads."""
        import fcntl  # not on Windows, where this package must still import

        handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def new_password(self) -> str:
        password = secrets.token_urlsafe(24)
        write_private(self.password_file, password + "\n")
        return password

    def dsn(self, port: int) -> str:
        try:
            password = self.password_file.read_text().strip()
        except FileNotFoundError:
            raise EmbeddedPostgresError(
                f"{self.password_file} is missing, so nobody can log in to the database in "
                f"{self.root}. Mend: restore that file, or move the folder away to begin anew"
            ) from None
        return f"postgresql://{ROLE}:{quote(password, safe='')}@{HOST}:{port}/{DATABASE}"

    def write_state(self, state: State) -> None:
        write_private(self.state_file, json.dumps(asdict(state)) + "\n")

    def read_state(self) -> State | None:
        """None if there is none, or none that can be read as one."""
        try:
            return State(**json.loads(self.state_file.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write_port(self, port: int) -> None:
        write_private(self.root / "port", f"{port}\n")

    def read_port(self) -> int | None:
        try:
            return int((self.root / "port").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def open_log(self) -> int:
        """A descriptor that appends to the log; the caller closes it."""
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def log_tail(self, since_byte: int, lines: int = 12) -> str:
        with self.log.open("rb") as log:
            log.seek(since_byte)
            text = log.read().decode("utf-8", "replace")
        return "\n".join(text.strip().splitlines()[-lines:])


def write_private(path: Path, text: str) -> None:
    """Write atomically a file that is 0600 from its first moment."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
