"""Where the upstreams' names lead now, for ``check``: a connection would be refused later."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

from gateway.core.egress import Egress, is_named
from gateway.policy.compiled import Policies, Upstream
from gateway.policy.errors import PolicyWarning

__all__ = ["LOOKUP_S", "looked_up"]

LOOKUP_S = 2.0
"""For all names together: a resolver answers within a fraction of it, or is not reachable here."""


def looked_up(policies: Policies, within_s: float = LOOKUP_S) -> Iterator[PolicyWarning]:
    """A warning for each upstream whose name leads where its policy does not allow. A name that has
    no answer here and now is passed over: it may have one where the gateway runs."""
    found: dict[str, list[str]] = {}
    known = {warning.file for warning in policies.warnings if warning.path == "upstream"}
    mounts = [
        mount
        for mount in policies.mounts
        if mount.file not in known and is_named(mount.upstream.host)
    ]
    # Threads that need not end: a resolver that hangs must not hold up the command's end.
    threads = [
        threading.Thread(target=_ask, args=(mount.upstream, found), daemon=True) for mount in mounts
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for mount in mounts:
        upstream = mount.upstream
        addresses = found.get(upstream.name, [])
        refused = Egress(upstream.host, upstream.allow_networks).refused(addresses)
        if refused is not None:
            yield PolicyWarning(
                mount.file,
                "upstream",
                f"{upstream.host!r} has the address {refused}, and a name may lead to public "
                "addresses only, so nothing would be sent; if it is right, list its network in "
                "allow_networks",
            )


def _ask(upstream: Upstream, found: dict[str, list[str]]) -> None:
    try:
        answers = socket.getaddrinfo(upstream.host, upstream.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    found[upstream.name] = [str(address[0]) for _, _, _, _, address in answers]
