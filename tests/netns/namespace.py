"""A network namespace with one cable to this machine, and a cut in that cable.

Everything is done inside the namespace that is made here, and to the pair of devices that leads
into it. The machine's own devices and rules are not touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

__all__ = ["Namespace", "made", "missing"]

_HOST = "10.231.{number}.1"
_INSIDE = "10.231.{number}.2"


class Namespace:
    """``host``: this machine's address on the cable, which only the namespace can reach."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host

    def command(self, *command: str) -> list[str]:
        """A command line that runs in it."""
        return ["ip", "netns", "exec", self.name, *command]

    def cut(self) -> None:
        """Packets are dropped in both directions; nobody is told."""
        for chain in ("INPUT", "OUTPUT"):
            _run(*self.command("iptables", "-I", chain, "-j", "DROP"))

    def restore(self) -> None:
        for chain in ("INPUT", "OUTPUT"):
            _run(*self.command("iptables", "-D", chain, "-j", "DROP"))


def missing() -> str | None:
    """Why there can be none here."""
    if os.geteuid() != 0:
        return "needs root, to make a network namespace"
    for tool in ("ip", "iptables"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    probe = f"fencegate-probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", probe)
        try:
            _run("ip", "netns", "exec", probe, "iptables", "-S")
        finally:
            _run("ip", "netns", "del", probe)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"
    return None


@contextlib.contextmanager
def made() -> Iterator[Namespace]:
    """A namespace that is gone at the end, its cable too."""
    pid = os.getpid()
    number = pid % 250 + 1
    name, outside, inside = f"fencegate-{pid}", f"fg{pid}a", f"fg{pid}b"
    host, own = _HOST.format(number=number), _INSIDE.format(number=number)
    _run("ip", "netns", "add", name)
    try:
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        _run("ip", "addr", "add", f"{host}/30", "dev", outside)
        _run("ip", "link", "set", outside, "up")
        space = Namespace(name, host)
        _run(*space.command("ip", "addr", "add", f"{own}/30", "dev", inside))
        _run(*space.command("ip", "link", "set", inside, "up"))
        _run(*space.command("ip", "link", "set", "lo", "up"))  # the namespace's own
        yield space
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("ip", "link", "del", outside)  # at once; with the namespace it would take a moment
        _run("ip", "netns", "del", name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=20)
