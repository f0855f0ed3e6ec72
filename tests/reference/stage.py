"""Everything that the comparison needs, running."""

from __future__ import annotations

from tests.kit.db import Server
from tests.kit.gateway import policy, stack
from tests.kit.operating import fencegate
from tests.kit.upstream import RecordingUpstream
from tests.reference.nginx import nginx, version
from tests.reference.play import COMMAND, at_gateway, at_nginx
from tests.reference.table import Columns

__all__ = ["measured"]


def measured(postgres: Server) -> Columns:
    """What becomes of each input. With a gateway key: without any, a Host of another machine would
    be refused for that alone."""
    with postgres.database() as dsn:
        token = fencegate("keys", "add", "--tenant", "t", "--name", "n", dsn=dsn).out.strip()
        with stack(postgres, lambda url: [policy(url, COMMAND)], database=dsn) as made:
            passage, command = (
                at_gateway(made, token, "passage"),
                at_gateway(made, token, "command"),
            )
    ours = {name: (passage[name], command[name]) for name in passage}
    if version() is None:
        return Columns(ours, None)
    with RecordingUpstream() as upstream, nginx(upstream.port) as port:
        passage, command = at_nginx(port, upstream, "passage"), at_nginx(port, upstream, "command")
    return Columns(ours, {name: (passage[name], command[name]) for name in passage})
