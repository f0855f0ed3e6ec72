"""A database on a disk of its own that a test can fill: a tmpfs, mounted where only the server and
its keeper see it.

Run as a program inside a mount namespace, it keeps the server: each line on its standard input is
an order (``fill``, ``free``), each line that it prints an answer.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.store.embedded import Cluster, EmbeddedPostgresError, start
from tests.kit.db import Server, open_folder

__all__ = ["SmallDisk", "small_disk", "why_not"]

_SIZE_MIB = 220
"""A new cluster is 45 MiB, its log 32 to 64, the rest is for what a test writes."""

_LEFT_BYTES = 256 * 1024
"""Left by ``fill``: enough for the log file of the server to be looked at, and for little else."""

_SETTINGS = {"max_wal_size": "48MB", "min_wal_size": "32MB", "shared_buffers": "16MB"}


def why_not() -> str | None:
    """Why no disk can be mounted here, or ``None``."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return "a disk of its own takes root and unshare"
    done = subprocess.run(
        [*_IN_NAMESPACE, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/mnt"],
        capture_output=True,
        check=False,
    )
    return None if done.returncode == 0 else "no tmpfs can be mounted here"


_IN_NAMESPACE = ("unshare", "--mount", "--propagation", "private")


@dataclass
class SmallDisk:
    """``server`` is like any other in tests, but never to be restarted by them."""

    server: Server
    _keeper: subprocess.Popen[str]

    def fill(self) -> None:
        """Take all but a little of what is left."""
        self._order("fill")

    def free(self) -> None:
        """Give it back, and start the server again if it could not go on."""
        self._order("free")

    def _order(self, what: str) -> None:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(f"{what}\n")
        self._keeper.stdin.flush()
        assert self._keeper.stdout.readline().strip() == what


@contextlib.contextmanager
def small_disk() -> Iterator[SmallDisk]:
    with open_folder() as folder:
        keeper = subprocess.Popen(
            [*_IN_NAMESPACE, sys.executable, "-m", "tests.kit.small_disk", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert keeper.stdout is not None
            dsn = keeper.stdout.readline().strip()
            assert dsn.startswith("postgresql://"), "the server did not start"
            yield SmallDisk(Server(Cluster(folder, dsn, 0, "", 0, True)), keeper)
        finally:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait(30)


def _keep(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_MIB}m,mode=0711", "tmpfs", str(disk)],
        check=True,
    )
    cluster = start(disk / "db", watchdog=True, settings=_SETTINGS)
    ballast = disk / "ballast"
    print(cluster.dsn, flush=True)
    for line in sys.stdin:
        if line.strip() == "fill":
            left = shutil.disk_usage(disk).free - _LEFT_BYTES
            # The server writes too, so the end may come sooner.
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as out:
                for _ in range(max(left, 0) // 65536):
                    out.write(bytes(65536))
        else:
            ballast.unlink(missing_ok=True)
            with contextlib.suppress(EmbeddedPostgresError):
                cluster = start(disk / "db", watchdog=True, settings=_SETTINGS, port=cluster.port)
        print(line.strip(), flush=True)
    cluster.stop(immediate=True)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
