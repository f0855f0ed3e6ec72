"""nginx twice: the upstream that every target calls, and the proxy that all are compared with."""

from __future__ import annotations

import http.client
import random
import re
import shutil
import string
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.kit import Stage
from gateway.crew import CrewError, environment, free_port

__all__ = ["MISSING", "SIZES", "Upstream", "installed", "start_proxy", "start_upstream"]

MISSING = "nginx is not installed. Mend: sudo apt-get install nginx-light wrk"

SIZES: Mapping[str, int] = {"200": 200, "10k": 10_000, "100k": 100_000}
"""Bytes of the upstream's answer, by the first segment of its path."""

# One worker each: beside them the load, the target and PostgreSQL want the same cores. Bodies stay
# in memory, as they do in the gateway.
_CONF = """\
worker_processes 1; daemon off; pid {folder}/{name}.pid; error_log {folder}/{name}.err;
worker_rlimit_nofile 8192;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/{name}-b; proxy_temp_path {folder}/{name}-p;
  fastcgi_temp_path {folder}/{name}-f; uwsgi_temp_path {folder}/{name}-u;
  scgi_temp_path {folder}/{name}-s;
  keepalive_requests 100000000; client_body_buffer_size 256k; client_max_body_size 8m;
{servers}
}}
"""
_UPSTREAM = """\
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    default_type application/json;
{answers}
    location /ready {{ return 200; }}
  }}
  server {{ listen 127.0.0.1:{status}; location / {{ stub_status; }} }}
"""
_PROXY = """\
  upstream target {{ server 127.0.0.1:{to}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://target; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffers 8 32k;
    }}
  }}
"""
_BEFORE, _BEHIND = '{"id":"ch_1","note":"', '"}'
_LETTERS = string.ascii_letters + string.digits
_PIECE = 1000  # nginx takes no word in its configuration that is longer than some 4,000 bytes


@dataclass(frozen=True, slots=True)
class Upstream:
    """A recording upstream as cheap as there is one: it counts, and answers 200 to everything."""

    port: int
    status_port: int
    pid: int

    def url(self, size: str) -> str:
        """Of answers with that many bytes, see ``SIZES``."""
        return f"http://127.0.0.1:{self.port}/{size}"

    def count(self) -> int:
        """Requests so far, without those for the count."""
        connection = http.client.HTTPConnection("127.0.0.1", self.status_port, timeout=10)
        connection.request("GET", "/")
        found = re.search(r"\n\s*\d+\s+\d+\s+(\d+)", connection.getresponse().read().decode())
        connection.close()
        assert found is not None
        _asked[self.status_port] = asked = _asked.get(self.status_port, 0) + 1
        return int(found[1]) - asked


_asked: dict[int, int] = {}


def installed() -> bool:
    return shutil.which("nginx") is not None


def start_upstream(on: Stage) -> Upstream:
    port, status = free_port(), free_port()
    answers = "\n".join(_answer(path, size) for path, size in SIZES.items())
    servers = _UPSTREAM.format(port=port, status=status, answers=answers)
    pid = _start(on, "upstream", servers, f"http://127.0.0.1:{port}/ready")
    return Upstream(port, status, pid)


def _answer(path: str, size: int) -> str:
    """Text as JSON holds it, of no pattern that a database could compress away."""
    chosen = random.Random(size)
    note = "".join(chosen.choices(_LETTERS, k=size - len(_BEFORE) - len(_BEHIND)))
    pieces = [note[at : at + _PIECE] for at in range(0, len(note), _PIECE)]
    names = [f"$n{path}_{number}" for number in range(len(pieces))]
    sets = [f'set {name} "{piece}";' for name, piece in zip(names, pieces, strict=True)]
    whole = f"return 200 '{_BEFORE}{''.join(names)}{_BEHIND}';"
    return "\n".join([f"    location /{path}/ {{", *sets, whole, "    }"])


def start_proxy(on: Stage, upstream: Upstream) -> tuple[str, int]:
    """Its URL and pid."""
    port = free_port()
    servers = _PROXY.format(port=port, to=upstream.port)
    pid = _start(on, "proxy", servers, f"http://127.0.0.1:{port}/ready")
    return f"http://127.0.0.1:{port}", pid


def _start(on: Stage, name: str, servers: str, ready: str) -> int:
    if not installed():
        raise CrewError(MISSING)
    conf = on.folder / f"{name}.conf"
    conf.write_text(_CONF.format(folder=on.folder, name=name, servers=servers))
    errors = str(on.folder / f"{name}.err")
    command = ["nginx", "-c", str(conf), "-p", str(on.folder), "-e", errors]
    return on.server(name, command, environment(), ready).pid
